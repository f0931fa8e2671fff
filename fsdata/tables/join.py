"""`Join`: a side table whose fields are added to the rows by key. The object checks its options and opens nothing."""

from dataclasses import dataclass
from typing import Literal

from fsdata.errors import SchemaError
from fsdata.options import seconds
from fsdata.sources.source import POLICIES, Joined


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Joined):
    """A side table whose fields are added to every row by key (left join).

    Each process reads the table into memory once, when the source is opened. Null policies and defaults of the joined
    fields are those of `source`; without `missing`, a key without a match makes all of them null.

    Args:
        source: the side table. Its keys must be distinct.
        on: the key in both tables, a field or column name; each table's `columns` may rename it. Integers, or dates or
            timestamps of one type in both.
        fields: the schema's fields that come from the side table; their columns follow `source.columns`.
        missing: policy for a row whose key has no match: `"default"`, every field has its default (all need one);
            `"mask"`, fields have their default or 0, and `Batch.mask[field]` is False; `"drop"`, the row is skipped;
            `"error"`. None: the policies of the fields apply.
        wait: for a `source` that is followed; the source of the rows must be followed, too. A file of rows is read
            when all of its keys have a match, or when it was not changed for this time ("30m"). Until then it blocks
            later files. A match may also arrive before its row, by at most this time. The table is not read into
            memory as a whole; only rows that are needed are.

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
                "Join(wait=...) and a source with `follow` need each other: give both, or none to read the table once"
            )
        if self.source.follow is not None and not self.source.follow.by_path:
            raise SchemaError(
                "the source of a Join must be followed by path, Follow(by='path'): its rows have no order"
            )
        if self.wait is not None:
            seconds(self.wait, "wait")
        without = [name for name in self.fields if name not in self.source.defaults]
        if self.missing == "default" and without:
            raise SchemaError(
                f"Join(missing='default') needs a default of every field: set defaults={{{without[0]!r}: ...}} of its "
                "source"
            )

    @property
    def form(self) -> str:
        """Its options, without its source; for fingerprints."""
        missing = f" missing={self.missing}" if self.missing else ""
        wait = f" wait={self.wait}" if self.wait else ""
        return f"join {self.on} {' '.join(self.fields)}{missing}{wait}"
