"""`Join`: a side table whose fields are added to the rows by key. Nothing is opened here."""

from dataclasses import dataclass
from typing import Literal

from fsdata.errors import SchemaError
from fsdata.options import seconds
from fsdata.sources.source import POLICIES, Joined


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Joined):
    """A side table whose fields are added to every row by key (left join).

    Each process reads the table into memory once, when the source is opened. Null policies and defaults of the joined
    fields are those of `source`; a key without a match is a null of each of them, if `missing` does not say otherwise.

    Args:
        source: the side table. Its rows must have different keys.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers, or dates or
            timestamps of one type in both.
        fields: the schema's fields that come from the side table; their columns follow `source.columns`.
        missing: what becomes of a row whose key has no match: `"default"`, every field has its default (all need one);
            `"mask"`, it has its default or 0, and `Batch.mask[field]` is False; `"drop"`, the row is left out;
            `"error"`. None: what the policies of the fields say.
        wait: of a `source` that is followed, as the source of the rows has to be then: a file of rows is read when all
            of its keys have a match, or when it was not changed for so long ("30m"). Files after it wait, too. A match
            may also come before its row, by as much. The table is not held in memory; only what rows need is.

    Raises:
        SchemaError: options that contradict each other.
    """

    missing: Literal["mask", "default", "drop", "error"] | None = None
    wait: str | None = None

    kind = "side table"

    @property
    def wait_s(self) -> float:
        """`wait` in seconds."""
        return 0.0 if self.wait is None else seconds(self.wait, "wait")

    def __post_init__(self) -> None:
        if self.missing not in (None, "mask", *POLICIES):
            raise SchemaError(
                f"Join(missing=...) must be 'mask', {', '.join(map(repr, POLICIES))} or None, got {self.missing!r}"
            )
        self._check((self.on,), shared=False)
        if (self.wait is None) != (self.source.follow is None):
            raise SchemaError(
                "Join(wait=...) goes with a source that is followed: give both, or none of them to read the table once"
            )
        if self.source.follow is not None and not self.source.follow.by_path:
            raise SchemaError("the source of a Join is followed by path: its rows have no order")
        if self.wait is not None:
            seconds(self.wait, "wait")
        without = [name for name in self.fields if name not in self.source.defaults]
        if self.missing == "default" and without:
            raise SchemaError(
                f"Join(missing='default') needs the values: defaults={{{without[0]!r}: ...}} of its source"
            )

    @property
    def form(self) -> str:
        """What it says, without its source; for fingerprints."""
        missing = f" missing={self.missing}" if self.missing else ""
        wait = f" wait={self.wait}" if self.wait else ""
        return f"join {self.on} {' '.join(self.fields)}{missing}{wait}"
