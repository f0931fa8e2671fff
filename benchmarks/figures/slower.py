"""The table of "Why is it slower for me?": what to measure, what was found to cost how much, and the option for it."""

from figures import training
from figures.records import Record, percent, record, table

_FSCOMM = {"plain": "prioritized", "balanced": "both"}  # runs of the demo: without, and with fscomm


def symptoms() -> None:
    demo, lost, flat, store = (record(name) for name in ("demo", "time_lost", "flat", "object_store"))
    stragglers, parts, loader = (record(name) for name in ("stragglers", "exposed_parts", "loader"))
    table(
        ["what you see", "measure", "cause, and what it cost where it was measured", "remedy"],
        [*_loading(loader, flat, store), *_balancing(stragglers, lost), *_communication(demo, parts)],
        *(loader, flat, store, stragglers, lost, demo, parts),
    )


def _loading(loader: Record, flat: Record, store: Record) -> list[list[str]]:
    small, large = (
        flat.row(shape=f"40 of 200 columns, zstd, row groups of {rows}")["in order / raw"]
        for rows in ("6,144", "100,000")
    )
    tiny = flat.row(shape="4 columns, row groups of 100")["shuffled / raw"]
    near, far = (store.row(**{"from": "S3, 100 ms", "read ahead": bound})["of local"] for bound in ("256MB", "0"))
    short, long = (loader.row(way="FreeScale", batch=size)["CPU / raw"] for size in (128, 512))
    return [
        [
            "only the first step, or the first loader, is slow",
            "the same program, started again",
            "kernels are compiled once on a machine: 10 s and more; the first step with fscomm is not served",
            "`freescale warm --fscomm`, `NUMBA_CACHE_DIR`",
        ],
        [
            "the column *data* is large",
            "the loop without the model: `for batch in loader: pass`",
            "decoding has too few cores, or the training thread leaves it none",
            "`num_threads=`, fewer columns in the schema, `freescale optimize`",
        ],
        [
            "loading got slower with more threads",
            "`num_threads=1`, `OMP_NUM_THREADS=1`",
            "decoding, torch and the other ranks of the machine take cores from each other",
            "`num_threads=` at most the cores of a rank, less one",
        ],
        [
            "loading is slow, files have small row groups",
            "`freescale profile` shows rows and row groups",
            f"a row group has a fixed cost: {small:.2f} times raw decode with 6,144 rows each, {large:.2f} "
            f"with 100,000; shuffled {tiny:.1f} times with 100",
            "write row groups of some 10,000 rows: `freescale optimize`",
        ],
        [
            "loading is slow, batches are small",
            "a larger `batch_size`",
            f"a batch has a fixed cost in Python: {short:.2f} times raw decode with 128 samples, {long:.2f} with 512",
            "larger batches",
        ],
        [
            "loading is slow, files are in an object store",
            "the same files on a local disk",
            f"latency: with 100 ms per request, {near:.2f} of the rows per second of local files; {far:.2f} without "
            "read-ahead",
            "`read_ahead=`: more than is decoded in twice the latency",
        ],
    ]  # fmt: skip


def _balancing(stragglers: Record, lost: Record) -> list[list[str]]:
    by_tokens = stragglers.row(case="planned by tokens")["fbs+swap"]
    ranks = max(row["ranks"] for row in lost.rows)

    def at(name: str, batches: str) -> str:
        return percent(lost.row(set=name, ranks=ranks, order="shuffled", batches=batches)["time lost"])

    noise = lost.note(rf"movielens, {ranks} ranks, shuffled, balanced: .*; ([\d.]+)% where")[0]
    return [
        [
            "ranks wait, and the plan predicts it: `batch.stats.straggler_after` is above 1 %",
            "`freescale profile`; `Plan.lower_bound`",
            f"one giant sample, which no plan can split: a heavy-tailed set lost {at('pareto', 'plain')} of the time "
            f"without and {at('pareto', 'balanced')} with balancing",
            "`Sequence(max_length=...)`, `split=`, larger batches",
        ],
        [
            "ranks wait, though plans are even",
            "`freescale calibrate run.json`: the R2 of the cost",
            f"the cost model is not that of your model: planned by tokens only, {by_tokens:.1f} % of "
            f"{stragglers.row(case='true cost', ranks=64)['none']:.0f} % remain",
            "`Balance(cost=fit(...))`",
        ],
        [
            "ranks wait now and then, also with equal batches",
            "the same batch on all ranks",
            f"a noisy host, or other jobs on it: {ranks} ranks with equal batches seem to lose {noise} %",
            "nothing in FreeScale; ranks that are slower all the time: `Balance(autotune=True)`",
        ],
        [
            "with balancing the column *data* grows",
            "`Balance(method=\"repair\")`",
            "samples move over a slow network: `fbs+swap` moves nearly all of them, `repair` few",
            "`method=\"auto\"`, `\"hierarchical\"`",
        ],
    ]  # fmt: skip


def _communication(demo: Record, parts: Record) -> list[list[str]]:
    sets = training.sets(training.of_act(demo, memory=True)).values()
    steps = [{row["run"]: row["step ms"] for row in runs} for runs in sets]
    pairs = [(runs[without], runs[given]) for runs in steps for without, given in _FSCOMM.items()]
    plain, prioritized = max(pairs, key=lambda ms: ms[1] / ms[0])
    most = max(row["% of ids"] for row in parts.rows)
    ms = {row["mode"]: row["(1) exposed ms"] for row in parts.where(**{"% of ids": most})}
    return [
        [
            "with fscomm, steps of some ms or on one machine are slower",
            "a BubbleMeter, plain: *ids*, *embeddings*, *gradients*",
            "nothing to overlap on links as fast as memory, and the threads of fscomm use cores: steps took "
            f"{prioritized:.0f} instead of {plain:.0f} ms",
            "leave fscomm out here; larger batches amortize it",
        ],
        [
            "fscomm overlaps little, and links are slow",
            "`comm.report()`: the collision rate; `freescale collisions`",
            f"most ids are shared with the previous step: at {most:.0f} % a step waits {ms['fscomm']:.0f} ms (plain "
            f"{ms['plain loop']:.0f} ms), in 4 parts {ms['fscomm in 4 parts']:.0f} ms",
            '`enable(model, parts=4)` or `parts="auto"`',
        ],
        [
            "fscomm overlaps nothing",
            "`comm.report().fallbacks`, or `strict=True`",
            "modules are not served: unsupported ones, tables on CUDA without a transport, or a loader that shares "
            "random numbers with the training step",
            "what the reason in the report says",
        ],
        [
            "fscomm is slow while cores are busy",
            "the report: how long the training thread is blocked",
            "its workers have no free core: look-ups and updates compete with compute",
            "a core or two per rank that neither torch nor the loader uses",
        ],
    ]  # fmt: skip
