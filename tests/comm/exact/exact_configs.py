"""The models that the exactness tests train, by name; and any others."""

from typing import Any

from exact_model import Config, Table, mixed
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    WeightDecayMode,
)
from hypothesis import strategies as st


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


def _pooled(sharding: str, pooling: str = "sum", precision: str = "FP32") -> dict[str, tuple[Table, ...]]:
    """One sharding group of three tables, one of other columns, four features."""
    return {
        "a": (
            Table(name="x", rows=41, sharding=sharding, features=("x0", "x1"), precision=precision, pooling=pooling),
            Table(name="y", rows=30, sharding=sharding, features=("y0",), precision=precision, pooling=pooling, home=1),
            Table(
                name="z", rows=25, sharding=sharding, features=("z0",), precision=precision, pooling="sum", columns=16
            ),
        )
    }


POOLED: dict[str, Config] = {
    **{
        f"pooled {sharding} {pooling}": Config(modules=_pooled(sharding, pooling), optimizer=optimizer, steps=10)
        for sharding, pooling, optimizer in (
            ("row", "sum", "rowwise"),
            ("row", "mean", "adagrad"),
            ("table", "sum", "adagrad"),
            ("table", "mean", "rowwise"),
            ("column", "sum", "sgd"),
            ("column", "mean", "rowwise"),
            ("host", "sum", "rowwise"),
            ("host", "mean", "adagrad"),
            ("grid", "sum", "adagrad"),
            ("grid", "mean", "sgd"),  # TorchRec then gives sums
        )
    },
    "pooled host weighted mean": Config(modules=_pooled("host", "mean"), weighted=True, steps=10),
    "pooled host half": Config(modules=_pooled("host", "mean", "FP16"), half_output=True, steps=10),
    "pooled hosts": Config(
        modules={
            "a": (
                *_pooled("host", "mean")["a"],
                Table(name="g", rows=37, sharding="grid", features=("g0", "g1"), pooling="sum", columns=16),
                Table(name="r", rows=36, sharding="row", features=("r0",), pooling="mean"),
            ),
            "b": mixed(60),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "pooled row weighted": Config(modules=_pooled("row", "sum"), weighted=True, steps=10),
    "pooled row weighted mean": Config(modules=_pooled("row", "mean"), weighted=True, steps=10),
    "pooled table weighted": Config(modules=_pooled("table", "sum"), weighted=True, steps=10),
    "pooled table weighted mean": Config(modules=_pooled("table", "mean"), weighted=True, optimizer="sgd", steps=10),
    "pooled half": Config(modules=_pooled("row", precision="FP16"), steps=10),
    "pooled table half": Config(modules=_pooled("table", "mean", precision="FP16"), steps=10),
    "pooled half output": Config(modules=_pooled("row"), half_output=True, steps=10),
    "pooled mixed": Config(
        modules={
            "a": (
                *_pooled("row", "mean")["a"],
                Table(name="t", rows=37, sharding="table", features=("t0",), pooling="mean", home=1),
                Table(name="c", rows=37, sharding="column", features=("c0", "c1"), pooling="sum", columns=16),
            ),
            "b": _second(),
        },
        weight_decay=0.01,
        static_graph=False,
    ),
    "pooled one id": Config(modules=_pooled("table"), max_length=1, max_batch=12),
    "pooled wide": Config(
        modules={
            "a": (
                Table(name="x", rows=41, sharding="row", features=("x0", "x1"), pooling="sum", columns=64),
                Table(name="y", rows=30, sharding="row", features=("y0",), pooling="mean", columns=4),
            )
        },
        max_batch=16,
        max_length=9,
    ),
    "pooled tiny": Config(modules={"a": _pooled("table", "mean")["a"], "b": mixed(12)}, spread=1.0),
}


def _wide(sharding: str, pooling: str = "") -> tuple[Table, ...]:
    """Of which every row, and every part of one, has whole groups of 32 numbers."""
    shared = {"sharding": sharding, "pooling": pooling, "columns": 64}
    return (
        Table(name=f"{sharding}x", rows=41, features=(f"{sharding}x0", f"{sharding}x1"), **shared),
        Table(name=f"{sharding}y", rows=30, features=(f"{sharding}y0",), home=1, **shared),
    )


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
QUANTISED: dict[str, dict[str, Any]] = {
    "rows": {"quantised": ("fp16", "fp32")},
    "gradients": {"quantised": ("fp32", "fp16")},
    "scaled": {"quantised": ("fp16", "fp16"), "loss_scale": 1024.0},
}
PRECISIONS = [None, None, None, *(each["quantised"] for each in QUANTISED.values())]
OF_CUDA = ("adam", "rowwise adam", "lamb", "rowwise lamb")  # trained here by stand-ins

CONFIGS: dict[str, Config] = {
    **POOLED,
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
    "row": Config(modules=_kinds("row"), optimizer="adagrad", steps=22),
    "table": Config(modules=_kinds("table"), optimizer="sgd", steps=22),
    "column": Config(modules=_kinds("column"), optimizer="rowwise", weight_decay=0.02, steps=22),
    "row sgd": Config(modules=_kinds("row"), optimizer="sgd", weight_decay=0.01),
    "row rowwise": Config(modules=_kinds("row"), weight_decay=0.03),
    "column adagrad": Config(modules=_kinds("column"), optimizer="adagrad", weight_decay=0.01),
    "table rowwise": Config(modules=_kinds("table"), weight_decay=0.02),
    "half sgd": Config(modules={"a": mixed(precision="FP16")}, optimizer="sgd"),
    "half adagrad": Config(modules={"a": mixed(precision="FP16")}, optimizer="adagrad"),
    "half rowwise": Config(modules={"a": mixed(precision="FP16")}, weight_decay=0.01),
    "half and full": Config(
        modules={
            "a": (
                Table(name="h", rows=31, sharding="row", features=("h0",), precision="FP16"),
                Table(name="f", rows=33, sharding="row", features=("f0", "f1")),
            )
        }
    ),
    "two rates": Config(
        modules={
            "a": (
                Table(name="h", rows=31, sharding="row", features=("h0",), rate=0.5),
                Table(name="f", rows=33, sharding="row", features=("f0", "f1")),
                Table(name="g", rows=33, sharding="table", features=("g0", "g1"), rate=2, home=1),
            )
        }
    ),
    "shared kjt": Config(modules={"a": mixed(), "b": _second()}, one_kjt=True),
    "tiny": Config(modules={"a": mixed(12)}, spread=1.0),  # a few rows a rank, everything collides
    "nothing shared": Config(modules={"a": mixed(4000)}, spread=0.01),
    "frozen": Config(
        modules={
            "a": (
                Table(name="x", rows=40, sharding="row", features=("x0",), frozen=True),
                Table(name="y", rows=40, sharding="row", features=("y0",)),
                Table(name="z", rows=40, sharding="table", features=("z0",), frozen=True),
            )
        }
    ),
    "no ddp": Config(modules={"a": mixed()}, data_parallel=False),
    "dedup": Config(modules={"a": mixed(), "b": _second()}, dedup=True, max_length=8, spread=0.2),
    "half output": Config(modules=_kinds("row"), half_output=True, weight_decay=0.01),
    "dedup and half": Config(
        modules=_kinds("row", precision="FP16"), dedup=True, half_output=True, optimizer="adagrad"
    ),
    **{optimizer: Config(modules={"a": mixed()}, optimizer=optimizer, weight_decay=0.01) for optimizer in OF_CUDA},
    **{name: Config(modules=_kinds("row"), fused=options, weight_decay=0.1) for name, options in OPTIONS.items()},
    "pooled clipped": Config(
        modules=_pooled("table", "mean"), optimizer="sgd", fused=OPTIONS["clipped gradients"], max_length=2, steps=10
    ),
    "bf16": Config(modules={"a": mixed(precision="BF16")}, optimizer="rowwise adam"),  # its kernels are ours, too
    "pooled bf16": Config(modules=_pooled("row", "mean", precision="BF16"), optimizer="adam", steps=10),
    "pooled adam": Config(modules=_pooled("row", "mean", precision="FP16"), optimizer="adam", steps=10),
    "pooled adam weighted mean": Config(
        modules=_pooled("table", "mean"), optimizer="adam", weighted=True, spread=0.3, steps=10
    ),
    "pooled lamb": Config(modules=_pooled("table", "mean"), optimizer="rowwise lamb", steps=10),
    **{
        f"quantised {name}": Config(modules={"a": mixed(), "b": _pooled("table", "mean")["a"]}, **options)
        for name, options in QUANTISED.items()
    },
    **{
        f"quantised in groups, {kind}": Config(modules=modules, quantised=("int8", "int8"), steps=10, **options)
        for kind, modules, options in (
            ("rows", {"a": _wide("row"), "b": _wide("column")}, {}),
            ("bags", {"a": _wide("table", "mean"), "b": _wide("column", "sum")}, {"optimizer": "adagrad"}),
            ("dedup", {"a": _wide("row")}, {"dedup": True, "calls": 2, "static_graph": False}),
        )
    },
    **{
        f"quantised sums {name}": Config(modules=_pooled("row", "mean"), steps=10, **options)
        for name, options in QUANTISED.items()
    },
    "quantised column": Config(modules=_pooled("column"), quantised=("fp16", "fp16"), steps=10),
    "quantised dedup": Config(modules={"a": mixed()}, quantised=("fp16", "fp16"), loss_scale=64.0, dedup=True),
    "called twice": Config(modules={"a": mixed(), "b": _second()}, calls=2, static_graph=False, max_batch=8),
    "pooled called twice": Config(
        modules={"a": _pooled("table", "mean")["a"], "b": mixed(60)}, calls=2, optimizer="adam", static_graph=False
    ),
    "one sample": Config(modules={"a": mixed()}, max_batch=1, max_length=2),
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
    "long": Config(modules={"a": mixed(200)}, max_batch=12, max_length=20, steps=20),
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
    quantised = None if half_output or ways & {"host", "grid"} else draw(st.sampled_from(PRECISIONS))
    return Config(
        modules=modules,
        optimizer=draw(st.sampled_from(["sgd", "adagrad", "rowwise", *OF_CUDA])),
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
        max_batch=draw(st.sampled_from([4, 8, 12, 1])),  # enough ids that what is stale is looked up, too
        max_length=draw(st.sampled_from([4, 8, 2, 1, 0])),
        spread=draw(st.sampled_from([1.0, 0.3, 1.0, 0.05])),
        seed=draw(st.integers(1, 10_000)),
    )
