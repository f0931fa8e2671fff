"""What a command has to show: a report of sections of blocks, made once of its document.

Blocks hold raw values, and texts that are plain; how they look is up to the terminal (`console.terminal`) and the page
(`page`). The terminal shows no figures and tiles, and no block with `on_terminal=False`; the page shows all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from freescale_tools.report.numbers import Kind

if TYPE_CHECKING:
    import plotly.graph_objects as go

Document = Mapping[str, Any]
"""The JSON document of a command, or a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a column is drawn.

    Attributes:
        color: or one for each row, of bars.
        dash: of its line; empty for marks without a line.
        symbol: of its marks; empty for a line without marks.
        filled: the area below the line, too.
    """

    color: str | Sequence[str]
    dash: str = "solid"
    symbol: str = ""
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, and a line or bars of a plot of it.

    Attributes:
        of: where its value stands in a row: a place, a key, keys joined by dots, or a function of the row.
        error: keys joined by dots, the standard error of a share; they may be missing.
        look: None if plots leave it out.
    """

    name: str
    kind: Kind
    of: int | str | Callable[[Any], Any]
    error: str = ""
    look: Look | None = None

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.kind.unit})" if self.kind.unit else self.name

    def value(self, row: Any) -> Any:
        if isinstance(self.of, int):
            return row[self.of]
        if not isinstance(self.of, str):
            return self.of(row)
        for key in self.of.split("."):
            row = row[key]
        return row

    def cell(self, row: Any) -> str:
        """The value of a row as text, without its unit."""
        value = self.value(row)
        if not self.error:
            return self.kind.write(value)
        error: Any = row
        for key in self.error.split("."):
            error = (error or {}).get(key)
        return self.kind.write(value, error)


def of_pair(values: Mapping[tuple[Any, Any], Any], second: Any) -> Callable[[Any], Any]:
    """Finds the value of a row that is the first of two keys; None where there is none."""
    return lambda row: values.get((row, second))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under columns, with sentences below."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    notes: Sequence[str] = ()
    on_terminal: bool = True

    @property
    def cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with its title, and a sentence that reads it for this data. The terminal shows sentence and table.

    Attributes:
        table: what is drawn; the page shows it if the reader opens it.
        height: in CSS pixels.
        half: two such plots share a line if the window is wide.
    """

    kind: ClassVar[str] = "plot"
    title: str
    aid: str
    figure: "go.Figure"
    table: Table | None = None
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
