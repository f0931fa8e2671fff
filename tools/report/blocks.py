"""The parts of a page: sections that hold blocks. Texts are plain; the template escapes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import plotly.graph_objects as go

Document = Mapping[str, Any]
"""The JSON document of a command, or a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts.

    Attributes:
        words: how many columns, from the left, hold words. They are aligned left, all others right.
        folded: shown only when the reader opens it.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure with its title, and a sentence that reads it for this data.

    Attributes:
        height: in CSS pixels.
        half: two such plots share a line if the window is wide.
    """

    kind: ClassVar[str] = "plot"
    title: str
    aid: str
    figure: go.Figure
    height: int = 360
    half: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code to copy."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A list of sentences."""

    kind: ClassVar[str] = "points"
    title: str
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One key figure."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Key figures side by side."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]


Block = Table | Plot | Code | Points | Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with blocks. `id` names it inside the page."""

    id: str
    title: str
    intro: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template shows."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
