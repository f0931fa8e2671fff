"""Finds the row numbers of the pages of a column chunk, and the pages that are needed (pure).

The row numbers of headers and offset index are compared with each other here, and with the levels of every unpacked
page in `fsdata.pages.chunk`. Where they do not match, all pages are read.

Letters: P pages, the dictionary included.
"""

import numpy as np

from fsdata.pages.kernels import headers, locations


def first_rows_by_headers(table: np.ndarray, rows: int) -> np.ndarray | None:
    """int64 [P + 1], the first row of each page and `rows`; None if headers do not have them (pages of version 1).

    Args:
        table: int64 [P, headers.COLUMNS], see `fsdata.pages.kernels.headers`.
        rows: number of rows of the row group.
    """
    data = table[:, headers.KIND] != headers.DICTIONARY
    # Pages of version 1 have -1, so 0 here, which `_checked` rejects. The upper bound keeps the sum from overflowing.
    counts = np.clip(table[data, headers.ROWS], 0, rows + 1)
    return _checked(np.concatenate([[0], np.cumsum(counts)]), rows, table, data)


def first_rows_by_index(table: np.ndarray, rows: int, entries: np.ndarray, begin: int) -> np.ndarray | None:
    """As `first_rows_by_headers`; None if the offset index contradicts headers or itself.

    Args:
        entries: int64, the offset index, one line per data page, see `fsdata.pages.kernels.locations`.
        begin: first byte of the chunk in the file.
    """
    data = table[:, headers.KIND] != headers.DICTIONARY
    # The index counts a page from its header, which begins where the previous page ends.
    ends = table[:, headers.AT] + table[:, headers.STORED]
    begins = np.concatenate([[0], ends[:-1]])
    same = (entries[:, locations.AT] == (begin + begins)[data]) & (entries[:, locations.BYTES] == (ends - begins)[data])
    return _checked(np.append(entries[:, locations.ROW], rows), rows, table, data) if same.all() else None


def _checked(first: np.ndarray, rows: int, table: np.ndarray, data: np.ndarray) -> np.ndarray | None:
    """`first` of the data pages, preceded by that of the dictionary page, if there is one; None if it is invalid."""
    values = table[data, headers.VALUES]
    if not len(values) or first[0] != 0 or first[-1] != rows or first.min() < 0:
        return None
    counts = np.diff(first)
    # A row has at least one value (also a null or empty list), and a page with values begins at least one row.
    if counts.min() < 0 or (counts > values).any() or ((counts == 0) & (values > 0)).any():
        return None
    return first if data[0] else np.concatenate([[0], first])


def with_rows(first: np.ndarray, wanted: range | np.ndarray) -> np.ndarray:
    """bool [P]: whether a page has one of the rows `wanted` (ascending); a dictionary is needed if any page is."""
    before = np.clip(first, wanted.start, wanted.stop) if isinstance(wanted, range) else np.searchsorted(wanted, first)
    needed = before[1:] > before[:-1]
    if first[1] == 0:
        needed[0] = needed.any()
    return needed
