"""A check, which notes all faults, against the loader, which stops at the first: row by row they must agree."""

import numpy as np
import pyarrow as pa
from tools_kit import write

from fsdata import ParquetSource, Schema, Sequence
from fsdata.compose.reading import open_source
from fsdata.decode.row_layout import layout_of
from fsdata.errors import DataError, Fault

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


def test_a_check_and_a_loader_reject_the_same_rows(tmp_path):
    fields = SCHEMA.field_names
    rejected = passed = 0
    kinds = set()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        policies = {name: some(rng, ["error", "drop", "default"]) for name in fields}
        write(tmp_path / "a.parquet", faulty(rng), group=1)
        defaults = {name: 5 for name in fields if policies[name] == "default"}
        source = ParquetSource(str(tmp_path / "a.parquet"), nulls=policies, defaults=defaults)
        notes: list[Fault] = []
        checked, opened = open_source(source, SCHEMA, notes=notes), open_source(source, SCHEMA)
        layout = layout_of(SCHEMA, opened.list_labels)
        for group in opened.groups:
            notes.clear()
            checked.read(group, layout, 0, 1)
            try:
                opened.read(group, layout, 0, 1)
                told = None
            except DataError as error:
                told = str(error)
            assert bool(notes) == bool(told), notes
            assert told is None or any(one.what in told for one in notes)
            assert all((one.row_group, one.rows.tolist()) == (group.index, [0]) for one in notes)
            kinds |= {one.kind for one in notes}
            rejected, passed = rejected + bool(told), passed + (not told)
        opened.close()
        checked.close()
    assert rejected > 20
    assert passed > 10
    assert kinds == {"null", "null element", "not finite", "range", "ragged"}
