"""Documents as the commands write them, for the tests of the page: usual, small and degenerate ones."""

import numpy as np

from freescale_tools.collisions.page import collisions_page
from freescale_tools.profile.page.page import profile_page
from freescale_tools.simulate.page.page import simulation_page

METHODS = ("none", "fbs", "fbs+swap", "vbs", "vbs-contiguous", "repair", "hierarchical")
WAYS = ("plain", "sparse dist", "balanced", "balanced + sparse dist", "prioritized", "sm-free", "all")
HOSTILE = "<script>window.stolen = 1</script>&<b>\"'</b>%{x}.parquet"


def sequence(lengths, *, files=8, drift=24, name="part"):
    """The part of a sequence column, from the lengths of all rows."""
    lengths = np.sort(np.asarray(lengths, np.int64))
    distinct, counts = np.unique(lengths, return_counts=True)
    shares = {"p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    events = int(lengths.sum())
    quantiles = {key: int(np.quantile(lengths, share)) for key, share in {**shares, "p999": 0.999}.items()}
    generator = np.random.default_rng(3)
    parts = np.array_split(generator.permutation(lengths), files)
    return {
        "rows": len(lengths),
        "events": events,
        "empty": int((lengths == 0).sum()),
        "null": 3,
        "null_elements": 0,
        "mean": float(lengths.mean()),
        "max": int(lengths[-1]),
        "quantiles": quantiles,
        "top1_share": float(lengths[-max(len(lengths) // 100, 1) :].sum() / max(events, 1)),
        "histogram": {"lengths": distinct.tolist(), "counts": counts.tolist()},
        "longest": [
            {"file": f"{name}-{place:05}.parquet", "row": 7 * place, "length": int(length)}
            for place, length in enumerate(lengths[::-1][:10])
        ],
        "per_file": [
            {
                "file": f"{name}-{place:05}.parquet",
                "rows": len(part),
                "events": int(part.sum()),
                "mean": float(part.mean()),
            }
            for place, part in enumerate(parts)
        ],
        "drift": drift_of(lengths, drift) if drift else None,
    }


def drift_of(lengths, spans):
    steps = []
    for span in range(spans):
        scale = 0.6 + 0.8 * span / spans
        steps.append(
            {
                "from": f"{2024 + span // 12}-{span % 12 + 1:02}-01T00:00:00",
                "to": f"{2024 + (span + 1) // 12}-{(span + 1) % 12 + 1:02}-01T00:00:00",
                "rows": len(lengths) // spans,
                "mean": float(lengths.mean() * scale),
                "p50": int(np.median(lengths) * scale),
                "p95": int(np.quantile(lengths, 0.95) * scale),
            }
        )
    return steps


def grid(*, lengths=(1000, 2000, 4000, 8000, 12_000, 16_000, 21_000)):
    ranks, sizes = (8, 16, 32, 64, 128, 256, 512, 1024), (16, 32, 64, 128, 256, 512)
    linear, quadratic = "Polynomial(linear=2000, quadratic=1, candidate=0)", "Power(alpha=2.0)"
    points = [
        *(point(axis="max_length", max_length=length) for length in lengths),
        *(point(axis="ranks", ranks=one) for one in ranks),
        *(point(axis="batch_size", batch_size=one) for one in sizes),
        *(point(axis="cost", cost=cost) for cost in (linear, "Power(alpha=1.0)", "Power(alpha=1.5)", quadratic)),
        *(
            point(axis="two-way", max_length=length, ranks=one, methods=("none", "fbs", "fbs+swap"))
            for length in lengths
            for one in (8, 64, 256, 1024)
        ),
    ]
    return {
        "default": {"ranks": 64, "batch_size": 128, "max_length": lengths[-1], "cost": linear},
        "max_lengths": list(lengths),
        "ranks": list(ranks),
        "batch_sizes": list(sizes),
        "methods": list(METHODS),
        "points": points,
        "wrong_model": [
            point(axis="wrong_model", planned_by=cost, worse=worse)
            for cost, worse in (("Power(alpha=1.0)", 4.0), ("Power(alpha=1.5)", 2.0), (quadratic, 7.0))
        ],
    }


def point(*, axis, max_length=21_000, ranks=64, batch_size=128, cost=None, planned_by=None, worse=1.0, methods=METHODS):
    """Numbers near those of the paper: growing with length and ranks, falling with the batch size."""
    cost = cost or "Polynomial(linear=2000, quadratic=1, candidate=0)"
    none = 0.22 * (max_length / 21_000) ** 0.35 * (ranks / 64) ** 0.12 * (128 / batch_size) ** 0.45
    shares = {
        "fbs": 0.024,
        "fbs+swap": 0.0004,
        "vbs": 0.002,
        "vbs-contiguous": 0.03,
        "repair": 0.006,
        "hierarchical": 0.011,
    }
    own = {
        name: min(worse * share * (max_length / 21_000) ** 0.8 * (ranks / 64) ** 0.3 * (128 / batch_size), none)
        for name, share in shares.items()
    }
    straggler = {"none": min(none, 0.9), **own}
    return {
        "axis": axis,
        "max_length": max_length,
        "ranks": ranks,
        "batch_size": batch_size,
        "cost": cost,
        "planned_by": planned_by or cost,
        "steps": 16,
        "sparsity": 0.93 * (max_length / 21_000) ** 0.05,
        "lower_bound": 0.0 if ranks < 512 else 0.004 * ranks / 512,
        "straggler": {method: straggler[method] for method in methods},
    }


def recommended():
    return {
        "max_length": 4096,
        "method": "fbs+swap",
        "cost_model": "Polynomial(linear=2000, quadratic=1, candidate=0)",
        "max_tokens": 61_300,
        "events_cut": 0.063,
        "straggler": 0.0004,
        "straggler_error": 0.00002,
        "straggler_none": 0.187,
        "straggler_none_error": 0.004,
        "lower_bound": 0.0,
        "why": [
            "4,096 is the longest cut at which a plan can get under 1% (lower bound 0.00%); it leaves out 6.3% of "
            "the events.",
            "method: fbs+swap leaves 0.04% of the time to waiting where unbalanced ranks wait 18.7%.",
        ],
        "code": "from fsdata import Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence\n\n"
        "schema = Schema(sequences=(Sequence('item_ids', fields=('item_ids',), max_length=4096),))\n"
        "balance = Balance('fbs+swap', cost=Polynomial(linear=2000, quadratic=1), max_tokens=61300)\n"
        "with FreeScaleDataLoader(ParquetSource('data/*.parquet'), schema, batch_size=128, balance=balance) as "
        "loader:\n    for batch in loader:\n"
        "        ...  # your training step\n",
    }


def collisions():
    def at(axis, *, order="file", batch_size=128, ranks=64, max_length=4096):
        rate = 0.12 * (batch_size * ranks / 8192) ** 0.3 * (max_length / 4096) ** 0.25
        rate *= {"file": 1.0, "shuffled": 0.9, "time": 2.6}[order]
        return {
            "axis": axis,
            "order": order,
            "batch_size": batch_size,
            "ranks": ranks,
            "max_length": max_length,
            "pairs": 16,
            "by_occurrence": {"mean": rate, "p50": 0.99 * rate, "p99": 1.17 * rate},
            "by_row": {"mean": 0.4 * rate, "p50": 0.4 * rate, "p99": 0.5 * rate},
            "occurrences": batch_size * ranks * 350.5,
            "distinct": batch_size * ranks * 120.25,
        }

    return {
        "column": "item_ids",
        "batch_size": 128,
        "ranks": 64,
        "max_length": 4096,
        "dim": 128,
        "sampled_pairs": 320,
        "points": [
            at("default"),
            *(at("order", order=order) for order in ("file", "shuffled", "time")),
            *(at("batch_size", batch_size=size) for size in (32, 64, 128, 256, 512)),
            *(at("ranks", ranks=ranks) for ranks in (8, 16, 32, 64, 128)),
            *(at("max_length", max_length=length) for length in (200, 500, 1000, 2000, 4096)),
        ],
        "bytes": {
            "ids": 353e3,
            "collision_rows": 1.9e6,
            "exclusive_rows": 17.2e6,
            "collision_gradients": 2.7e6,
            "exclusive_gradients": 19.9e6,
        },
        "left_out": [{"axis": "ranks", "order": "file", "batch_size": 128, "ranks": 1024, "rows": 262_144}],
        "rows": 165_838,
        "rows_read": 120_000,
        "skipped": [],
        "notes": ["120,000 of 165,838 rows were read, from 12 stretches of the data."],
    }


def simulation(*, ranks=(8, 16, 32, 64, 128, 256, 512, 1024), carried=128):
    points = [step(one, way) for one in ranks for way in WAYS]
    qps = {(point["ranks"], point["way"]): point["qps"] for point in points}
    return {
        "hardware": {
            "name": "h100-ib",
            "parameters": [
                {"name": "gpus_per_host", "value": 8, "unit": "GPUs", "source": "paper: NVSwitch in a host"},
                {"name": "network", "value": 25.0, "unit": "GB/s", "source": "paper: 200 Gb/s InfiniBand per GPU"},
                {"name": "exchange_efficiency", "value": 0.7, "unit": "share", "source": "assumed"},
                {"name": "cost", "value": "Polynomial(linear=2000)", "unit": "", "source": "profile: recommended"},
            ],
        },
        "ways": list(WAYS),
        "points": points,
        "gain": [{"ranks": one, "qps_gain": qps[one, "all"] / qps[one, "sparse dist"] - 1} for one in ranks],
        "over": "sparse dist",
        "over_balanced": "balanced + sparse dist",
        "verdict": {
            "ranks": carried or ranks[0],
            "gains": {
                name: {"value": value, "low": value - 0.05, "high": value + 0.1}
                for name, value in {"balance": 0.25, "prioritized": 0.15, "sm_free": 0.01, "all": 0.45}.items()
            },
            "pays": {"balance": "yes", "prioritized": "yes", "sm_free": "unsure"},
            "why": ["17% of a balanced step waits for communication; fscomm can only win from that."],
        },
        "carried": {"ranks": carried, "rows": 83_000, "batch_size": 128},
    }


def step(ranks, way):
    balanced = way.startswith("balanced") or way == "all"
    ahead, prioritized = way != "plain", way in ("prioritized", "sm-free", "all")
    idle = 12.0 if balanced else 62.0 + 6 * np.log2(ranks)
    exposed = (13.0 if prioritized else 101.0 if ahead else 111.0) * (0.6 + 0.07 * np.log2(ranks))
    contention = {"prioritized": 18.0}.get(way, 2.0)
    compute, rows = 240.0, exposed / 2
    bars, at = [], 0.0
    for lane, what, ms in (
        ("network", "collision rows" if prioritized else "rows", rows),
        ("compute", "forward", compute / 3),
        ("compute", "backward", 2 * compute / 3),
        ("compute", "wait for the slowest", idle),
        ("network", "collision gradients" if prioritized else "gradients", rows),
        ("compute", "optimizer", 9.0),
    ):
        bars.append({"lane": lane, "what": what, "start_ms": at, "ms": ms})
        at += ms
    if prioritized:
        bars.append({"lane": "network", "what": "exclusive gradients", "start_ms": rows, "ms": 80.0})
        bars.append({"lane": "network", "what": "exclusive rows", "start_ms": rows + 80.0, "ms": 70.0})
    bars.append({"lane": "host", "what": "id metadata", "start_ms": rows, "ms": 10.0})
    bars.append({"lane": "data", "what": "read", "start_ms": 0.0, "ms": 40.0})
    return {
        "ranks": ranks,
        "way": way,
        "step_ms": at,
        "compute_ms": compute + 9.0,
        "data_wait_ms": 0.0,
        "qps": 1e3 * 128 * ranks / at,
        "bubbles": {"straggler_ms": idle, "exposed_ms": exposed, "contention_ms": contention},
        "timeline": bars,
    }


def lengths(rows=40_000, *, longest=21_000):
    drawn = np.random.default_rng(5).lognormal(np.log(180), 1.25, rows)
    return np.minimum(drawn, longest).astype(np.int64) * (np.arange(rows) % 50 > 0)


def profile(**changes):
    made = lengths()
    return {
        "version": 1,
        "kind": "profile",
        "mode": "full",
        "created": "2026-11-21T00:30:00+00:00",
        "paths": ["data/interactions-*.parquet"],
        "files": 8,
        "rows": len(made),
        "row_groups": 88,
        "bytes": 17_784_325,
        "skipped": [],
        "sequences": {"item_ids": sequence(made)},
        "candidates": {"candidate_ids": sequence(np.random.default_rng(1).integers(1, 12, 40_000), drift=0)},
        "stragglers": grid(),
        "recommended": recommended(),
        "collisions": collisions(),
        "simulation": simulation(),
        **changes,
    }


def quick():
    """Footers only: no lengths, so nothing that follows from them."""
    document = profile(mode="quick", stragglers=None, recommended=None, collisions=None, simulation=None, candidates={})
    unknown = ("empty", "null", "null_elements", "max", "quantiles", "top1_share", "histogram", "longest", "drift")
    document["sequences"]["item_ids"].update(dict.fromkeys(unknown))
    return document


def tiny():
    """One file of three rows, one of them with an event; nothing else could be said."""
    return profile(
        files=1,
        rows=3,
        sequences={"a": sequence([0, 0, 1], files=1, drift=1)},
        candidates={},
        stragglers=None,
        recommended=None,
        collisions=None,
        simulation=None,
    )


def no_events():
    """Rows without events, and a column without rows."""
    nothing = sequence([0], files=1, drift=0)
    nothing.update(rows=0, empty=0, mean=0.0, longest=[], histogram={"lengths": [], "counts": []}, per_file=[])
    document = tiny()
    document["sequences"] = {"empty": sequence([0, 0, 0, 0], files=2, drift=2), "nothing": nothing}
    return document


def collisions_result():
    created, paths = "2026-11-21T00:30:00+00:00", ["data/interactions-*.parquet"]
    return {"version": 1, "kind": "collisions", "created": created, "paths": paths, "collisions": collisions()}


def simulate_result():
    created = "2026-11-21T00:30:00+00:00"
    return {
        "version": 1,
        "kind": "simulate",
        "created": created,
        "profile": "freescale-report",
        "simulation": simulation(),
    }


def hostile():
    """Names and reasons that would be markup, or fields of a plot's template, if they were not escaped."""
    document = profile(paths=[HOSTILE])
    document["sequences"] = {HOSTILE: sequence(lengths(2000), name=HOSTILE)}
    document["collisions"]["column"] = HOSTILE
    document["skipped"] = [{"file": HOSTILE, "row_group": None, "rows": 10, "reason": f"bad page: {HOSTILE}"}]
    return document


def page(document):
    """The page of a document, made by its command."""
    made = {"profile": profile_page, "collisions": collisions_page, "simulate": simulation_page}
    return made[document["kind"]](document)
