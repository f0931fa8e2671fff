"""A side table that is followed: for each file of rows the rows of the table that match, and no others."""

from collections.abc import Mapping, Sequence

from fsdata.decode.attached import Stage
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.growing.growing_files import GrowingFiles
from fsdata.tables.side_table import SideTable, attach, decoded_rows_of, table_of

SideFile = tuple[str, str]
"""Name of a file, digest of its footer."""


class LateSide(Stage):
    """The side table of a `Join` with `wait`. `of` may be called by any thread, `enter` by one.

    empty: the table without rows. files: of it.
    """

    turn = 1

    def __init__(self, empty: SideTable) -> None:
        self.empty = empty
        assert isinstance(empty.files, GrowingFiles)
        self.files = empty.files
        self._numbers: dict[SideFile, int] = {}
        self._decoded: dict[SideFile, list[DecodedRows]] = {}
        self._of: dict[int, SideTable] = {}

    def enter(self, sides: Mapping[int, Sequence[SideFile]]) -> None:
        """Hold what these files of rows need: file -> files of the side table. Blocks until they are decoded.

        Raises: as `SourceFiles.extend` and `SourceFiles.decode`; DataError: two rows with one key.
        """
        files = self.files
        needed = dict.fromkeys(side for of in sides.values() for side in of)
        missing = [side for side in needed if side not in self._numbers]
        if missing:
            first = len(files.catalog)
            files.extend([name for name, _ in missing], [digest for _, digest in missing])
            self._numbers |= {side: first + number for number, side in enumerate(missing)}
        self._decoded = {
            side: self._decoded.get(side) or decoded_rows_of(self.empty, self._numbers[side]) for side in needed
        }
        tables: dict[tuple[SideFile, ...], SideTable] = {}
        for of in map(tuple, sides.values()):
            if of not in tables:
                tables[of] = table_of([each for side in of for each in self._decoded[side]], self.empty)
        self._of = {file: tables[tuple(of)] for file, of in sides.items()}

    def attach(self, decoded: DecodedRows, file: int) -> None:
        attach(decoded, self.of(file))

    def of(self, file: int) -> SideTable:
        """The table for the rows of a file."""
        return self._of[file]
