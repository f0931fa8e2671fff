"""The models that the exactness tests train, by name; and any others."""

from typing import Any

from exact_kinds import planned
from exact_model import Config, Table, mixed
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    WeightDecayMode,
)
from hypothesis import strategies as st

OPTIMIZERS = ("sgd", "adagrad", "rowwise", "adam", "rowwise adam", "lamb", "rowwise lamb")
OPTIONS: dict[str, dict[str, Any]] = {  # of row-wise Adagrad
    "clipped gradients": {"gradient_clipping": True, "max_gradient": 0.003},
    "largest norm": {"max_norm": 0.5},
    "decoupled decay": {"weight_decay_mode": WeightDecayMode.DECOUPLE},
    "L2 decay": {"weight_decay_mode": WeightDecayMode.L2},
    "counters": {
        "weight_decay_mode": WeightDecayMode.COUNTER,
        "counter_based_regularization": CounterBasedRegularizationDefinition(
            counter_weight_decay_mode=CounterWeightDecayMode.ADAGRADW, max_counter_update_freq=-1
        ),
    },
    "cowclip": {
        "weight_decay_mode": WeightDecayMode.COWCLIP,
        "cowclip_regularization": CowClipDefinition(),
    },
}


def _second() -> tuple[Table, ...]:
    return (
        Table(name="s", rows=33, sharding="row", features=("s0", "s1")),
        Table(name="u", rows=21, sharding="column", features=("u0",), home=1),
    )


def _kinds(sharding: str, precision: str = "FP32") -> dict[str, tuple[Table, ...]]:
    """One sharding group of two tables, three features."""
    return {
        "a": (
            Table(name="x", rows=41, sharding=sharding, features=("x0", "x1"), precision=precision),
            Table(name="y", rows=30, sharding=sharding, features=("y0",), precision=precision, home=1),
        )
    }


def _names(table: str, count: int) -> tuple[str, ...]:
    return tuple(f"{table}{number}" for number in range(count))


def _pooled(sharding: str, pooling: str) -> tuple[Table, ...]:
    """One sharding group of three tables, one of other columns, four features."""
    return (
        Table(name="x", rows=41, sharding=sharding, features=("x0", "x1"), pooling=pooling),
        Table(name="y", rows=30, sharding=sharding, features=("y0",), pooling=pooling, home=1),
        Table(name="z", rows=25, sharding=sharding, features=("z0",), pooling="sum", columns=16),
    )


def _wide(sharding: str, pooling: str = "") -> tuple[Table, ...]:
    """Of which every row, and every part of one, has whole groups of 32 numbers."""
    shared = {"sharding": sharding, "pooling": pooling, "columns": 64}
    return (
        Table(name=f"{sharding}x", rows=41, features=(f"{sharding}x0", f"{sharding}x1"), **shared),
        Table(name=f"{sharding}y", rows=30, features=(f"{sharding}y0",), home=1, **shared),
    )


CONFIGS: dict[str, Config] = {
    "several": Config(modules={"a": mixed(), "b": _second()}, static_graph=False),
    "loops": Config(
        modules={
            "a": (
                Table(name="r", rows=40, sharding="row", features=("r0", "r1")),
                Table(name="t", rows=37, sharding="table", features=("t0", "t1"), home=1),
            ),
            "b": (Table(name="s", rows=33, sharding="row", features=("s0",)),),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "small": Config(
        modules={
            "a": (Table(name="r", rows=40, sharding="row", features=("r0", "r1")),),
            "b": (Table(name="s", rows=33, sharding="table", features=("s0",), home=1),),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "row": Config(modules=_kinds("row"), optimizer="adagrad", steps=22),
    "half rowwise": Config(modules={"a": mixed(precision="FP16")}, weight_decay=0.01),
    "odd tables": Config(  # of other precisions and learning rates in one sharding group, and such as are not trained
        modules={
            "a": (
                Table(name="h", rows=31, sharding="row", features=("h0",), precision="FP16", rate=0.5),
                Table(name="f", rows=33, sharding="row", features=("f0", "f1")),
                Table(name="x", rows=40, sharding="row", features=("x0",), frozen=True),
                Table(name="g", rows=33, sharding="table", features=("g0", "g1"), rate=2, home=1),
                Table(name="z", rows=40, sharding="table", features=("z0",), frozen=True),
            )
        }
    ),
    "tiny": Config(modules={"a": mixed(12)}, spread=1.0),  # a few rows a rank, everything collides
    "one KJT": Config(modules={"a": mixed(), "b": _second()}, one_kjt=True, dedup=True, max_length=8, spread=0.2),
    "half output": Config(modules=_kinds("row", "FP16"), half_output=True, optimizer="adagrad"),
    "bf16": Config(modules={"a": mixed(precision="BF16")}, optimizer="rowwise adam"),
    "counters": Config(modules=_kinds("row"), fused=OPTIONS["counters"], weight_decay=0.1),
    "called twice": Config(modules={"a": mixed(), "b": _second()}, calls=2, static_graph=False, max_batch=8),
    "uniform": Config(  # a row comes back after one step as likely as after three
        modules={
            "a": (
                Table(name="r", rows=150, sharding="row", features=("r0", "r1")),
                Table(name="t", rows=150, sharding="table", features=("t0",), home=1),
            ),
            "b": (Table(name="s", rows=100, sharding="row", features=("s0",)),),
        },
        static_graph=False,
        spread=1.0,
        max_batch=8,
        max_length=8,
    ),
    "pooled mixed": Config(
        modules={
            "a": (
                *_pooled("row", "mean"),
                Table(name="t", rows=37, sharding="table", features=("t0",), pooling="mean", home=1),
                Table(name="c", rows=37, sharding="column", features=("c0", "c1"), pooling="sum", columns=16),
            ),
            "b": _second(),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "pooled hosts": Config(
        modules={
            "a": (
                *_pooled("host", "mean"),
                Table(name="g", rows=37, sharding="grid", features=("g0", "g1"), pooling="sum", columns=16),
                Table(name="r", rows=36, sharding="row", features=("r0",), pooling="mean"),
            ),
            "b": mixed(60),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "pooled table mean": Config(modules={"a": _pooled("table", "mean")}, steps=10),
    "pooled weighted": Config(modules={"a": _pooled("row", "mean")}, weighted=True, steps=10),
    "pooled called twice": Config(
        modules={"a": _pooled("table", "mean"), "b": mixed(60)}, calls=2, optimizer="adam", static_graph=False
    ),
    "quantised": Config(
        modules={"a": mixed(), "b": _pooled("table", "mean")}, quantised=("fp32", "fp16"), loss_scale=1024.0
    ),
    "quantised sums": Config(modules={"a": _pooled("row", "mean")}, quantised=("fp16", "fp32"), steps=10),
    "planned": Config(  # as a planner has it: large tables by rows or whole, small ones on every rank, one in UVM
        modules={
            "a": (
                Table(name="r", rows=97, sharding="row", features=_names("r", 12), precision="FP16"),
                Table(name="c", rows=60, sharding="column", features=("c0", "c1"), precision="FP16", home=1),
                Table(name="u", rows=50, sharding="table", features=("u0",), home=1),
            ),
            "b": (
                Table(name="d", rows=6, sharding="data", features=("d0",), pooling="mean"),
                *_pooled("table", "mean"),
                Table(name="q", rows=41, sharding="row", features=_names("q", 12), pooling="sum"),
            ),
        },
        static_graph=False,
        quantised=("fp16", "fp16"),
        max_batch=12,
        builder=planned,
    ),
    "quantised in groups": Config(
        modules={"a": _wide("table", "mean"), "b": _wide("column", "sum")}, quantised=("int8", "int8"), steps=10
    ),
}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """A model of one or two modules, its data and its optimizer."""
    modules: dict[str, tuple[Table, ...]] = {}
    for module in ("a", "b")[: draw(st.integers(1, 2))]:
        tables = []
        poolings = draw(st.sampled_from([[""], [""], ["sum"], ["mean", "sum"]]))
        shardings = ["row", "row", "table", "column", *(["host", "grid"] if poolings != [""] else [])]
        for number in range(draw(st.integers(1, 3))):
            name = f"{module}{number}"
            tables.append(
                Table(
                    name=name,
                    rows=draw(st.sampled_from([12, 24, 41, 97])),
                    sharding=draw(st.sampled_from(shardings)),
                    features=tuple(f"{name}_{feature}" for feature in range(draw(st.integers(1, 2)))),
                    precision=draw(st.sampled_from(["FP32", "FP32", "FP32", "FP16"])),
                    home=draw(st.integers(0, 3)),
                    rate=draw(st.sampled_from([1.0, 1.0, 0.5])),
                    pooling=draw(st.sampled_from(poolings)),
                    columns=draw(st.sampled_from([8, 8, 16, 64])) if poolings != [""] else 8,
                )
            )
        modules[module] = tuple(tables)
    ways = {table.sharding for tables in modules.values() for table in tables}
    # TorchRec itself fails on ranks without a table of the group: they send empty float32.
    half_output = ways == {"row"} and draw(st.booleans())
    precisions = [None, None, None, ("fp16", "fp32"), ("fp32", "fp16"), ("fp16", "fp16")]
    quantised = None if half_output or ways & {"host", "grid"} else draw(st.sampled_from(precisions))
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    plain_rows = ways == {"row"} and not any(table.pooling for tables in modules.values() for table in tables)
    with_options = optimizer == "rowwise" and plain_rows and draw(st.booleans())
    return Config(
        modules=modules,
        optimizer=optimizer,
        weight_decay=draw(st.sampled_from([0.0, 0.02])),
        data_parallel=draw(st.sampled_from([True, True, False])),
        static_graph=False,
        one_kjt=draw(st.booleans()),
        dedup=draw(st.sampled_from([False, False, True])),
        calls=draw(st.sampled_from([1, 1, 2])),
        weighted=draw(st.booleans()),
        half_output=half_output,
        quantised=quantised,
        loss_scale=draw(st.sampled_from([None, 1024.0])) if quantised else None,
        fused=OPTIONS[draw(st.sampled_from(sorted(OPTIONS)))] if with_options else {},
        max_batch=draw(st.sampled_from([4, 8, 12, 1])),  # enough ids that what is stale is looked up, too
        max_length=draw(st.sampled_from([4, 8, 2, 1, 0])),
        spread=draw(st.sampled_from([1.0, 0.3, 1.0, 0.05])),
        seed=draw(st.integers(1, 10_000)),
        hides=True,
    )
