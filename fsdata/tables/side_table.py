"""Side tables: read into memory once and sorted by key. A join is a binary search for row numbers.

Letters: M rows of the side table, N rows that are joined.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fsdata.catalog.binding.bind import FileKind
from fsdata.decode.attached import Attached, Stage
from fsdata.decode.block import Column
from fsdata.decode.decoded_rows import DecodedRows
from fsdata.decode.keyed_rows import KeyedRows, concatenated, order_of_keys, read_rows
from fsdata.decode.readers.source_files import SourceFiles
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.errors import SchemaError
from fsdata.schema import Field, Schema, fields_of
from fsdata.tables.join import Join

_KEYS = "keys"
_VALUES, _STARTS, _LENGTHS, _DENSE = "values of ", "starts of ", "lengths of ", "dense "


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideTable(Attached, Stage):
    """A side table, sorted by its unique keys. Row M, the last one, has the values of rows without a match.

    Attributes:
        layout: its fields.
        arrays: keys, int64 [M + 1]; values of fields with one value per row and dense fields, [M + 1]; values of lists
            in the order of the files, with start and length by row, [M + 1].
    """

    join: Join
    layout: Layout
    arrays: Mapping[str, np.ndarray]

    @property
    def kinds(self) -> Sequence[FileKind]:
        return self.files.kinds

    @property
    def defaults(self) -> dict[str, float | str]:
        return {**dict.fromkeys(self.masks, 0), **self.source.defaults}

    @property
    def masks(self) -> frozenset[str]:
        return frozenset(self.join.fields if self.join.missing == "mask" else ())

    @property
    def may_drop(self) -> bool:
        return "drop" in self._policies.values()

    @property
    def _policies(self) -> dict[str, str]:
        """Field -> policy for rows without a match."""
        return {name: self.join.missing or self.source.policy(name) for name in self.join.fields}

    def attach(self, decoded: DecodedRows, file: int) -> None:
        """Add the side table's fields. A key that is null or has no match is a null of every joined field.

        Raises:
            DataError: a key without a match where a field's policy is `error`.
        """
        layout, arrays = decoded.layout, self.arrays
        row, matched = self._look_up(decoded)
        for number, name in enumerate(layout.dense):
            if name in self.join.fields:
                decoded.dense[:, number] = arrays[_DENSE + name][row]
        for name, slot in layout.masks.items():
            if name in self.join.fields:
                decoded.columns[slot] = Column.of(matched.view(np.uint8))
        for field in self.layout.fields:
            name, slot = field.name, layout.slots[field.name]
            if layout.fields[slot].is_list != field.is_list:
                raise SchemaError(
                    f"{decoded.faults.where}: {name} is a list in one source and a scalar in another; all must agree"
                )
            start = arrays[_STARTS + name][row] if field.is_list else row
            length = arrays[_LENGTHS + name][row].astype(np.int64) if field.is_list else None
            # The values belong to the table and not to these rows, so they do not count in the block's bytes.
            decoded.columns[slot] = replace(Column.of(arrays[_VALUES + name], start=start, length=length), bytes=0)

    def _look_up(self, decoded: DecodedRows) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [N], the row that matches, M without a match; bool [N], whether one does). Applies the policies."""
        on, keys = self.join.on, self.arrays[_KEYS]
        wanted, null = decoded.keys[Field(on, "join_key")]
        # Keys above all others get row M, whose key is only a placeholder: it may be equal to a wanted key.
        row = np.searchsorted(keys[:-1], wanted)
        matched = (keys[row] == wanted) & (row < len(keys) - 1) & ~null
        row = np.where(matched, row, len(keys) - 1)
        unmatched = np.flatnonzero(~matched & ~decoded.drop)

        def describe(strict: list[str]) -> tuple[str, str]:
            key = "null" if null[unmatched[0]] else int(wanted[unmatched[0]])
            what = f"{on} {key} is not in the {self.label}, which makes {', '.join(strict)} null"
            return what, f". Give that ParquetSource a default for it, or nulls={{{strict[0]!r}: 'drop'}}"

        decoded.nulls.without_match(on, unmatched, self._policies, describe)
        return row, matched

    def rows_of_file(self, file: int) -> KeyedRows:
        """Decode the rows of one of its files. Blocks. Raises as `load_side_table`."""
        groups = (self.files.groups[place] for place in self.files.groups.of_file(file))
        return read_rows(self.files, groups, self.layout, self.join.on)

    def with_rows(self, parts: Iterable[KeyedRows]) -> "SideTable":
        """The table with these rows only. Raises DataError if a key is in two of them."""
        rows = concatenated(parts, self.layout)
        return replace(self, arrays=_arrays(rows, self.join, self.files, self.layout))


def load_side_table(join: Join, schema: Schema, open_files: Callable[..., SourceFiles]) -> SideTable:
    """Decode a whole side table, and close its files.

    open_files: opens its files, see `open_joined` in `fsdata.compose.reading`.

    Raises:
        SchemaError: the files cannot be read as these fields.
        DataError: a null key, or a key of two rows.
    """
    wanted = [field for field in fields_of(schema) if field.name in join.fields]
    files = open_files([*wanted, Field(join.on, "join_key")])
    try:
        bindings = (binding for kind in files.kinds for binding in kind.bindings)
        list_labels = frozenset(each.field.name for each in bindings if each.field.kind == "label" and each.is_list)
        layout = layout_of(schema, list_labels).only(join.fields)
        rows = read_rows(files, files.groups, layout, join.on)
        return SideTable(join=join, files=files, layout=layout, arrays=_arrays(rows, join, files, layout))
    finally:
        files.close()


def _arrays(rows: KeyedRows, join: Join, files: SourceFiles, layout: Layout) -> dict[str, np.ndarray]:
    """See `SideTable`."""
    order = order_of_keys(rows.keys, files.faults, join.on, "a side table has one row per key")
    defaults = join.source.defaults
    arrays = {_KEYS: np.append(rows.keys[order], 0)}
    for number, name in enumerate(layout.dense):
        arrays[_DENSE + name] = np.append(rows.dense[order, number], np.float32(defaults.get(name, 0)))
    for field in layout.fields:
        name, values = field.name, rows.values[field.name]
        if field.is_list:
            # A row without a match has a null list, which becomes a list of defaults when lists are aligned.
            length, missing = rows.lengths[name], 0 if field.kind == "nested_ids" else -1
            stored = np.maximum(length, 0)
            arrays[_LENGTHS + name] = np.append(length[order], missing).astype(np.int32)
            arrays[_STARTS + name] = np.append((np.cumsum(stored) - stored)[order], 0)
            arrays[_VALUES + name] = values
        else:
            default = np.full(1, defaults.get(name, 0), field.dtype)
            arrays[_VALUES + name] = np.concatenate([values[order], default])
    return arrays
