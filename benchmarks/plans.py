"""Does `freescale plan` order sharding plans as they are measured, and is its plan no slower than TorchRec's?

    python benchmarks/plans.py [--sets 20] [--calibration-sets 10] [--rounds 3] [--steps 5] [--rate 100]

Ranks live in network namespaces whose links are held to a rate. Links are timed, and the parameters of the model are
fitted to measured steps of random plans on table sets that are used for nothing else. Then, for every held-out random
table set: this planner's plan, TorchRec's default plan and some random plans are predicted, and trained in turns.

Kendall's tau is over the candidate plans of one set: pairs of plans that prediction and measurement put in the same
order, minus those in opposite order, over all pairs. Plans that are equal count once. Needs root.
"""

import argparse
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common.table import emit
from network.namespaces import why_not
from network.world import World
from parts.plans_rank import drawn_ids

from freescale_tools.model.hardware import Hardware, load_hardware
from freescale_tools.plan.costs import ID_EXCHANGES, PLAIN, Placed, Setting, Shard, load, parts, rated, together
from freescale_tools.plan.tables import Table
from freescale_tools.plan.torchrec import as_document, chosen_plan, default_plan
from freescale_tools.write.links import measured_hardware
from fsdata.balance.cost import non_negative

RANKS = 4
SAMPLES = 128
MOST_IDS = 8  # of a sample; exchanges of more than a megabyte come out uneven where TCP shares a shaped link
SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20)
HELD_OUT = 2000  # seeds of held-out sets begin here
COUNTED = 200_000  # ids that the planner sees of a feature, from another seed than those that are trained on
Set = list[dict[str, Any]]


def table_set(seed: int) -> tuple[Set, bool]:
    """Random tables, of an EmbeddingBagCollection for even seeds, else of an EmbeddingCollection."""
    rng = np.random.default_rng(seed)
    pooled = seed % 2 == 0
    width = int(rng.choice([32, 64, 128]))
    tables = []
    for place in range(int(rng.integers(4, 9)) if pooled else int(rng.integers(3, 7))):
        tables.append({
            "name": f"t{place}",
            "rows": int(np.exp(rng.uniform(np.log(1e3), np.log(5e4)))),
            "dim": int(rng.choice([16, 32, 64, 128])) if pooled else width,
            "features": [f"f{place}"],
            "ids_per_sample": float(np.exp(rng.uniform(0, np.log(MOST_IDS)))),
            "skew": float(rng.uniform(0, 1.2)),
            "hashed": bool(rng.integers(2)),
        })  # fmt: skip
    return tables, pooled


def planned_tables(tables: Set, *, pooled: bool, seed: int) -> list[Table]:
    """As the planner knows them: lengths, and how often rows are used."""
    found = []
    for place, one in enumerate(tables):
        ids = drawn_ids(one, COUNTED, np.random.default_rng([seed, place, 7]))
        found.append(
            Table(
                name=one["name"], rows=one["rows"], dim=one["dim"], features=tuple(one["features"]),
                kind="pooled" if pooled else "sequence", ids_per_sample=(one["ids_per_sample"],),
                uses=np.bincount(ids, minlength=one["rows"]).astype(float),
            )
        )  # fmt: skip
    return found


WAYS = ("table_wise", "row_wise", "column_wise")


def random_plan(tables: Sequence[Table], rng: np.random.Generator, allowed: Sequence[str] = WAYS) -> list[Placed]:
    """Every table sharded in a random one of the ways, on random ranks; table-wise if it is too narrow for columns."""
    placed = []
    for table in tables:
        ways = [way for way in allowed if way != "column_wise" or table.dim >= 64] or ["table_wise"]
        way: Any = ways[rng.integers(len(ways))]
        if way == "row_wise":
            block = -(-table.rows // RANKS)
            cut = [min(rank * block, table.rows) for rank in range(RANKS + 1)]
            shards = [Shard(rank, cut[rank], cut[rank + 1] - cut[rank], table.dim) for rank in range(RANKS)]
        else:
            width = 32 if way == "column_wise" else table.dim
            ranks = rng.permutation(RANKS)[: table.dim // width]
            shards = [Shard(int(rank), 0, table.rows, width) for rank in ranks]
        placed.append(Placed(table=table, sharding=way, shards=tuple(shards)))
    return placed


def key(placed: Sequence[Placed]) -> Any:
    def lies(shard: Shard) -> Any:
        return shard.rank, shard.first, shard.rows, shard.dim

    return tuple(sorted((one.table.name, one.sharding, tuple(sorted(map(lies, one.shards)))) for one in placed))


def measured(
    world: World, setting: Setting, tables: Set, pooled: bool, plans: Sequence[Any], options: Any, seed: int
) -> np.ndarray:
    """Milliseconds, float64 [plans, rounds * steps]: the mean of the ranks. Plans take turns in every round."""
    documents = [as_document(one, setting) for one in plans]
    world.call(
        "prepare", tables=tables, pooled=pooled, plans=documents, samples=SAMPLES, batches=options.steps, seed=seed
    )
    found: list[list[float]] = [[] for _ in plans]
    for number in range(options.rounds):
        for turn in range(len(plans)):
            place = (turn + number) % len(plans)
            answers = world.call("block", plan=place, warm=1, steps=options.steps)
            found[place] += (1e3 * np.mean(answers, axis=0)).tolist()
    return np.array(found)


def usual(steps: np.ndarray) -> np.ndarray:
    """[plans] the lower quartile of the steps: what else runs on the machine makes steps longer, and none shorter."""
    return np.quantile(steps, 0.25, axis=1)


FEATURES = ("constant", "call", "MB of the busiest rank", "MB of all ranks", "MB looked up", "M ids")


def features(placed: Sequence[Placed], setting: Setting) -> np.ndarray:
    """float64 [6]: what the parameters of the model multiply, as FEATURES names it."""
    whole = together([load(one, setting) for one in placed])
    groups = len({(one.table.module, one.sharding) for one in placed if one.sharding != "data_parallel"})
    sent = whole.moved[:, 0]
    most, everything, looked_up = sent.max(axis=1).sum(), sent.sum(), whole.looked_up.max()
    calls = (ID_EXCHANGES + 2) * groups
    return np.array([1, calls, most / 1e6, everything / 1e6, looked_up / 1e6, whole.travelling / 1e6])


def fitted(
    measure: Callable[..., np.ndarray], setting: Setting, sets: int
) -> tuple[dict[bool, Setting], dict[str, dict[str, Any]]]:
    """By kind of collection, `pooled` or not: `setting` with fitted parameters, and how they were fitted.

    Least relative errors over plans of the calibration's table sets: random ones, and some that shard all tables alike.
    """
    x: dict[bool, list[Any]] = {True: [], False: []}
    y: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(sets):
        tables, pooled = table_set(seed)
        known = planned_tables(tables, pooled=pooled, seed=seed)
        rng = np.random.default_rng([seed, 11])
        alike: list[Sequence[str]] = [("table_wise",), ("table_wise",), ("row_wise",), ("column_wise",)]
        plans = [random_plan(known, rng, allowed) for allowed in [*alike, WAYS, WAYS, WAYS]]
        x[pooled] += [features(one, setting) for one in plans]
        y[pooled] += usual(measure(tables, pooled, plans, seed=seed)).tolist()
    found = {pooled: _fit(np.array(x[pooled]), np.array(y[pooled]), setting) for pooled in x}
    names = {True: "pooled", False: "sequence"}
    return {pooled: one[0] for pooled, one in found.items()}, {names[pooled]: one[1] for pooled, one in found.items()}


def _fit(rows: np.ndarray, steps: np.ndarray, setting: Setting) -> tuple[Setting, dict[str, Any]]:
    """rows: float64 [plans, 6]; steps: milliseconds [plans]."""
    values = non_negative(rows / steps[:, None], np.ones(len(steps)))
    _, call, busiest, everything, looked_up, ids = values.tolist()
    error = np.abs(rows @ values / steps - 1)
    changes = {
        "nvlink": 1 / max(busiest, 1e-6), "exchange_latency": 1e3 * call, "peer_latency": 0.0, "kernel_floor": 0.0,
        "id_metadata": ids, "exchange_efficiency": 1.0,
    }  # fmt: skip
    sources = {**setting.hardware.sources, **dict.fromkeys(changes, f"fitted: {len(steps)} plans that were trained")}
    made = dataclasses.replace(
        setting,
        hardware=dataclasses.replace(setting.hardware, sources=sources, **changes),
        lookup_ms_per_mb=looked_up / 3,
        apply_ms_per_mb=looked_up * 2 / 3,
        shared_ms_per_mb=everything,
    )
    return made, {
        "ms": dict(zip(FEATURES, values.tolist(), strict=True)),
        "median_error": float(np.median(error)), "worst_error": float(error.max()),
        "measured_ms": steps.tolist(),
    }  # fmt: skip


def kendall(predicted: Sequence[float], steps: Sequence[float], *, apart: float = 0.0) -> float:
    """Over all pairs of plans, or those that were measured `apart` by more than this share; 1 if there are none."""
    pairs = [
        (a, b)
        for a, b in itertools.combinations(range(len(steps)), 2)
        if abs(steps[a] - steps[b]) > apart * min(steps[a], steps[b]) or not apart
    ]
    return float(np.mean([np.sign((predicted[a] - predicted[b]) * (steps[a] - steps[b])) for a, b in pairs] or [1.0]))


def one_set(
    measure: Callable[..., np.ndarray], settings: dict[bool, Setting], seed: int, others: int
) -> dict[str, Any]:
    """Predict and measure the candidate plans of one held-out set."""
    tables, pooled = table_set(seed)
    setting = settings[pooled]
    known = planned_tables(tables, pooled=pooled, seed=seed)
    rate = functools.partial(rated, compute=0.0, collision=0.0, way=PLAIN)
    started = time.monotonic()
    theirs = default_plan(known, setting)
    best = chosen_plan(theirs, setting, rate)
    took = time.monotonic() - started
    rng = np.random.default_rng([seed, 13])
    given = [best, theirs]
    given += [random_plan(known, rng) for _ in range(others)]
    plans = list({key(one): one for one in given}.values())
    names = [key(one) for one in plans]
    steps = measure(tables, pooled, plans, seed=seed)
    middle = usual(steps)
    predicted = [rate(parts(one, setting)) for one in plans]
    chosen, default = (names.index(key(one)) for one in given[:2])
    found = {
        "set": seed - HELD_OUT, "kind": "pooled" if pooled else "sequence", "tables": len(tables), "plans": len(plans),
        "tau": kendall(predicted, middle.tolist()), "tau 5 % apart": kendall(predicted, middle.tolist(), apart=0.05),
        "default ms": float(middle[default]), "chosen ms": float(middle[chosen]),
        "chosen / default": float(middle[chosen] / middle[default]), "planning s": took,
        "predicted": predicted, "measured": steps.tolist(), "chosen": chosen, "default": default,
    }  # fmt: skip
    print(
        f"set {found['set']:2d} {found['kind']:8s}: tau {found['tau']:.2f}, chosen / default "
        f"{found['chosen / default']:.3f}, {found['chosen ms']:.1f} of {found['default ms']:.1f} ms",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return found


def link_hardware(world: World) -> Hardware:
    """The links as they are timed, on one host; what is not timed stays as in h100-ib, and is fitted or not used."""
    told = world.call("links", sizes=SIZES, repeats=5)[0]
    beside = {"product": {"alone_s": 1.0, "beside_s": 1.0}, "where": f"{RANKS} ranks in namespaces"}
    return measured_hardware({**told, **beside, "ranks_per_host": RANKS}, load_hardware("h100-ib"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20, help="held-out table sets")
    parser.add_argument("--calibration-sets", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a block")
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s that a rank may send")
    parser.add_argument("--random", type=int, default=6, help="random plans of a set")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    with World(ranks=RANKS, module="parts.plans_rank") as world:
        world.network.shape(options.rate)
        setting = Setting(
            hardware=link_hardware(world),
            ranks=RANKS,
            batch_size=SAMPLES,
            device="cpu",
            memory_bytes=32 << 30,
            receivers_wait=False,
        )

        def measure(tables: Set, pooled: bool, plans: Sequence[Any], *, seed: int) -> np.ndarray:
            return measured(world, setting, tables, pooled, plans, options, seed)

        settings, fit = fitted(measure, setting, options.calibration_sets)
        for kind, one in fit.items():
            print(kind, one["ms"], f"{one['median_error']:.3f}", file=sys.stderr, flush=True)
        sets = [one_set(measure, settings, HELD_OUT + seed, options.random) for seed in range(options.sets)]
    report(sets, fit, options)


def report(sets: Sequence[dict[str, Any]], fit: dict[str, Any], options: Any) -> None:
    columns = ["set", "kind", "tables", "plans", "tau", "tau 5 % apart", "default ms", "chosen ms"]
    columns += ["chosen / default", "planning s"]
    tau = np.array([one["tau"] for one in sets])
    ratio = np.array([one["chosen / default"] for one in sets])
    rows = [[one[name] for name in columns] for one in sets]
    apart = np.array([one["tau 5 % apart"] for one in sets])
    rows.append(["mean", None, None, None, tau.mean(), apart.mean(), None, None, ratio.mean(), None])
    rows.append(["worst", None, None, None, tau.min(), apart.min(), None, None, ratio.max(), None])
    emit(
        "plans" if options.sets >= 20 else "plans-partial",
        f"Sharding plans on {RANKS} CPU ranks, links of {options.rate:g} Mbit, plain loop without compute",
        columns,
        rows,
        notes=[
            *(
                f"Error of the fit, {kind}: median {one['median_error']:.1%}, worst {one['worst_error']:.1%}."
                for kind, one in fit.items()
            ),
            f"Mean tau {tau.mean():.3f}; {np.mean(tau >= 0.8):.0%} of the sets reach 0.8. Over pairs of plans "
            f"that were measured more than 5 % apart: {apart.mean():.3f}.",
            f"The chosen plan's step over the default plan's: mean {ratio.mean():.3f}, worst {ratio.max():.3f}.",
        ],
        extra={"sets": list(sets), "fit": fit, "options": vars(options)},
        data="random table sets and ids",
    )


if __name__ == "__main__":
    main()
