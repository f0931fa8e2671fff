"""What a command has to show: a report of sections of blocks, made once of its document.

Blocks hold raw values, and texts that are plain; how they look is up to the terminal (`console.terminal`) and the page
(`page`). The terminal shows no figures and tiles, and no block with `on_terminal=False`; the page shows all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
class Block:
    """A part of a section."""

    title: str
    on_terminal: bool = True

    @property
    def kind(self) -> str:
        """By which the page knows how to show it."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Block):
    """Rows under columns, with sentences below."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    notes: Sequence[str] = ()

    @property
    def cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot(Block):
    """A figure with its title, and a sentence that reads it for this data. The terminal shows sentence and table.

    Attributes:
        table: what is drawn; the page shows it if the reader opens it.
        height: in CSS pixels.
        half: two such plots share a line if the window is wide.
    """

    aid: str
    figure: "go.Figure"
    table: Table | None = None
    height: int = 360
    half: bool = False
    on_terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Block):
    """Code to copy."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Block):
    """A list of sentences."""

    sentences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One key figure."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles(Block):
    """Key figures side by side, for a page: what they say stands in tables, too."""

    tiles: Sequence[Tile]
    title: str = ""
    on_terminal: bool = False


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
