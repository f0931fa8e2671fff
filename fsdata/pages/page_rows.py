"""Which rows the pages of a column chunk hold, and which pages are needed. Pure: tables of pages in, rows out.

What a file says of its pages is compared with their headers here, and with the levels of every page that is decoded
(`fsdata.pages.chunk`). Where it does not fit, all pages are read.

Letters: P pages, the dictionary included.
"""

import numpy as np

from fsdata.pages.kernels import headers, locations


def said_by_headers(table: np.ndarray, rows: int) -> np.ndarray | None:
    """int64 [P + 1], the first row of each page and `rows`; None where headers do not say so, as in pages of version 1.

    Args:
        table: int64 [P, headers.COLUMNS], see `fsdata.pages.kernels.headers`.
        rows: of the row group.
    """
    data = table[:, headers.KIND] != headers.DICTIONARY
    counts = np.clip(table[data, headers.ROWS], 0, rows + 1)  # 0 in pages of version 1, which `_checked` refuses
    return _checked(np.concatenate([[0], np.cumsum(counts)]), rows, table, data)


def said_by_index(table: np.ndarray, rows: int, found: np.ndarray, begin: int) -> np.ndarray | None:
    """As `said_by_headers`; None where the offset index contradicts headers or itself.

    Args:
        found: int64, one line for each data page, see `fsdata.pages.kernels.locations`.
        begin: first byte of the chunk in the file.
    """
    data = table[:, headers.KIND] != headers.DICTIONARY
    ends = table[:, headers.AT] + table[:, headers.STORED]
    begins = np.concatenate([[0], ends[:-1]])
    same = (found[:, locations.AT] == (begin + begins)[data]) & (found[:, locations.BYTES] == (ends - begins)[data])
    return _checked(np.append(found[:, locations.ROW], rows), rows, table, data) if same.all() else None


def _checked(first: np.ndarray, rows: int, table: np.ndarray, data: np.ndarray) -> np.ndarray | None:
    """With the dictionary, which is before all data and has no rows; None where it cannot be."""
    values = table[data, headers.VALUES]
    if not len(values) or first[0] != 0 or first[-1] != rows or first.min() < 0:
        return None
    counts = np.diff(first)
    if counts.min() < 0 or (counts > values).any() or ((counts == 0) & (values > 0)).any():
        return None
    return first if data[0] else np.concatenate([[0], first])


def with_rows(first: np.ndarray, wanted: range | np.ndarray) -> np.ndarray:
    """bool [P]: whether a page holds one of the rows `wanted`, which ascend; a dictionary is needed if any page is."""
    before = np.clip(first, wanted.start, wanted.stop) if isinstance(wanted, range) else np.searchsorted(wanted, first)
    needed = before[1:] > before[:-1]
    if first[1] == 0:
        needed[0] = needed.any()
    return needed
