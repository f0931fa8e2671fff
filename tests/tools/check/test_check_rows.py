"""The scan that names every row against the loader, which stops at the first: row by row they must agree."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.check.table_scan import Table
from fsdata import ParquetSource, Schema, Sequence
from fsdata.decode.opened_source import open_source
from fsdata.decode.row_layout import layout_of
from fsdata.errors import DataError
from fsdata.schema import fields_of

SCHEMA = Schema(
    sequences=(
        Sequence("uih", ("item",), floats=("price",), labels=("watched",), id_labels=("next",), nested=("tags",)),
        Sequence("other", ("seen",)),
    ),
    candidates=Sequence("candidates", ("ad",)),
    context=("user",),
    dense=("age",),
    labels=("click", "bought"),
)
ROWS = 60
NAN = float("nan")


def some(rng, values):
    return values[int(rng.integers(len(values)))]


def faulty(rng):
    """Rows of which most have something wrong, one to a row group."""
    lists = {"item": [1, 2**63, None], "price": [0.5, NAN, None], "seen": [3, None], "ad": [4], "click": [0.0, None],
             "tags": [[1, 2], [2**63], [None, 3], None], "watched": [1.5, NAN], "next": [6, None]}  # fmt: skip
    counts = rng.integers(0, 3, ROWS)
    made = {
        name: [some(rng, [*[[values[0]] * n] * 9, [some(rng, values)] * n, [values[0]], None]) for n in counts]
        for name, values in lists.items()
    }
    for name, values in {"user": [1, None, 2**63], "age": [1.0, NAN, None], "bought": [0.0, 1.0]}.items():
        made[name] = [some(rng, [*values[:1] * 12, *values]) for _ in range(ROWS)]
    kinds = {"item": pa.list_(pa.uint64()), "price": pa.list_(pa.float64()), "seen": pa.large_list(pa.int32()),
             "tags": pa.list_(pa.list_(pa.uint64())), "watched": pa.list_(pa.float64()), "next": pa.list_(pa.int8()),
             "ad": pa.list_(pa.int64()), "click": pa.list_(pa.float32()), "user": pa.uint64()}  # fmt: skip
    return pa.table({name: pa.array(values, kinds.get(name)) for name, values in made.items()})


def test_scan_and_loader_reject_the_same_rows(tmp_path):
    fields = SCHEMA.field_names
    rejected = passed = 0
    for seed in range(2):
        rng = np.random.default_rng(seed)
        policies = {name: some(rng, ["error", "drop", "default"]) for name in fields}
        pq.write_table(faulty(rng), tmp_path / "a.parquet", row_group_size=1)
        defaults = {name: 5 for name in fields if policies[name] == "default"}
        source = ParquetSource(str(tmp_path / "a.parquet"), nulls=policies, defaults=defaults)
        opened = open_source(source, SCHEMA)
        layout = layout_of(SCHEMA, opened.list_labels)
        groups = {"uih": SCHEMA.sequences[0].all_fields, "other": ("seen",), "candidates": ("ad", *SCHEMA.labels)}
        table = Table(source, fields_of(SCHEMA), groups=groups, label="source 0")
        for group in range(ROWS):
            found = table.scan(0, group)
            try:
                opened.read(opened.groups[group], layout, 0, 1)
                stops = False
            except DataError:
                stops = True
            assert bool(found) == stops, found
            assert all(one.rows.tolist() == [0] for one in found)
            rejected, passed = rejected + stops, passed + (not stops)
        opened.close()
    assert rejected > 20
    assert passed > 10
