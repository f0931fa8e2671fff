"""A side table that is followed: each file of rows is joined with the files of the table that have its matches."""

from collections.abc import Mapping, Sequence

from fsdata.decode.attached import Stage
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.keyed_rows import KeyedRows
from fsdata.growing.growing_files import GrowingFiles
from fsdata.tables.side_table import SideTable

SideFile = tuple[str, str]
"""Name of a file, digest of its footer."""


class LateSide(Stage):
    """The side table of a `Join` with `wait`. `attach` may be called by any thread, `enter` by one.

    Attributes:
        empty: the table without rows. files: of the table.
    """

    turn = 1

    def __init__(self, empty: SideTable) -> None:
        self.empty = empty
        assert isinstance(empty.files, GrowingFiles)
        self.files = empty.files
        self._numbers: dict[SideFile, int] = {}
        self._rows: dict[SideFile, KeyedRows] = {}
        self._tables: dict[int, SideTable] = {}

    def enter(self, sides: Mapping[int, Sequence[SideFile]]) -> None:
        """Load the matches of these files of rows, and release those of others. Blocks until they are decoded.

        sides: file of rows -> files of the side table with its matches.

        Raises: as `SourceFiles.extend` and `SourceFiles.decode`; DataError: two rows with one key.
        """
        needed = dict.fromkeys(side for side_files in sides.values() for side in side_files)
        missing = [side for side in needed if side not in self._numbers]
        if missing:
            first = len(self.files.catalog)
            self.files.extend([name for name, _ in missing], [digest for _, digest in missing])
            self._numbers |= {side: first + number for number, side in enumerate(missing)}
        self._rows = {side: self._rows.get(side) or self.empty.rows_of_file(self._numbers[side]) for side in needed}
        # Files of rows that arrived together mostly have their matches in the same side files: they share a table.
        tables = {
            side_files: self.empty.with_rows(self._rows[side] for side in side_files)
            for side_files in dict.fromkeys(map(tuple, sides.values()))
        }
        self._tables = {file: tables[tuple(side_files)] for file, side_files in sides.items()}

    def attach(self, decoded: DecodedRows, file: int) -> None:
        self._tables[file].attach(decoded, file)
