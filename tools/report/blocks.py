"""What a command has to show: a report of sections of blocks, made once of its document.

Blocks hold raw values, and texts that are plain; how they look is up to the terminal (`console.terminal`) and the page
(`page`). The terminal shows no plots and tiles, and no block with `on_terminal=False`; the page shows all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from freescale_tools.report.numbers import Kind

if TYPE_CHECKING:
    import plotly.graph_objects as go

Document = Mapping[str, Any]
"""The JSON document of a command, or a part of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        of: where its value stands in a row: a place, a key, keys joined by dots, or a function of the row.
        error: likewise, the standard error of a share; it may be missing.
    """

    name: str
    kind: Kind
    of: int | str | Callable[[Any], Any]
    error: str = ""

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.kind.unit})" if self.kind.unit else self.name

    def cell(self, row: Any) -> str:
        """The value of a row as text."""
        value = _found(row, self.of)
        if not self.error:
            return self.kind.write(value)
        error: Any = row
        for key in self.error.split("."):
            error = (error or {}).get(key)
        return self.kind.write(value, error)


def _found(row: Any, of: int | str | Callable[[Any], Any]) -> Any:
    if isinstance(of, int):
        return row[of]
    if not isinstance(of, str):
        return of(row)
    for key in of.split("."):
        row = row[key]
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns, with sentences below. `folded`: on the page only shown when the reader opens it."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    notes: Sequence[str] = ()
    folded: bool = False
    on_terminal: bool = True

    @property
    def cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with its title, and a sentence that reads it for this data.

    Attributes:
        height: in CSS pixels.
        half: two such plots share a line if the window is wide.
        on_terminal: the sentence is shown there.
    """

    kind: ClassVar[str] = "plot"
    title: str
    aid: str
    figure: "go.Figure"
    height: int = 360
    half: bool = False
    on_terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code to copy."""

    kind: ClassVar[str] = "code"
    title: str
    text: str
    on_terminal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A list of sentences."""

    kind: ClassVar[str] = "points"
    title: str
    sentences: Sequence[str]
    on_terminal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One key figure."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Key figures side by side, for a page: what they say stands in tables, too."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]
    on_terminal: ClassVar[bool] = False


Block = Table | Plot | Code | Points | Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with blocks. `id` names it inside the page."""

    id: str
    title: str
    intro: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a command shows. `facts`: names and values for its head."""

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
