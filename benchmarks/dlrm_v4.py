"""A recommender's log, MLPerf DLRMv4's in shape, made into samples: by FreeScale, and one by one with numpy.

1. `--events N`: a synthetic log (see `eventlog.log`). `freescale histories` makes the table, and a loader opens it on
   disk. Seconds and peak memory (without pages of mapped files, which the system reclaims when it needs them).
2. `--check`: every sample of the log is compared with that of `eventlog.per_sample`, under the rules of DLRMv4 and
   three others.
3. Processor time for 1,000 samples, of FreeScale and of numpy, user after user (the order of the reference) and
   shuffled; of it, what takes as long with the plainest histories; what `share` would save where it applies.
4. How many item ids of a rank's batch are duplicates, in three orders.
5. Straggler share at 64 simulated ranks, dealt in the order of time and balanced.

Run: python benchmarks/dlrm_v4.py --events 1000000 --events 10000000 --events 100000000 --check
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.table import argument_parser, emit
from eventlog import fast, log
from eventlog.per_sample import CROSSES, Log, Rules, collate
from torch.utils.data import DataLoader, Dataset

from fsdata import FreeScaleDataLoader, ParquetSource, Polynomial, Schema, pack

COLUMNS = ["events", "what", "FreeScale", "numpy, one by one", "unit"]
RULES = Rules()
CHECKED = (RULES, Rules(cap=None), Rules(cap=4_086), Rules(scan=50, cap=9, most=20, min_history=0))
SAMPLES, BATCH = 20_000, 250
ORDERS: dict[str, dict[str, Any]] = {"user order": {}, "shuffled": {"shuffle": True}}
NODE, NODE_BATCH, NODE_SAMPLES_S = 8, 1_024, 12_969  # the reference on 8 B200: ranks, samples of one, of all a second
EFFECTIVE = 2_663  # events of a sample of the reference, in the mean
RANKS, PER_RANK = 64, 128
MOST_CHECKED = 2_000_000
BUCKET_EVENTS = 12_000_000
MEASURED = """
import resource, sys, threading, time
peak, over = [0], threading.Event()
def watch():
    while not over.wait(0.02):
        own = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
        peak[0] = max(peak[0], int(own[0].split()[1]))
threading.Thread(target=watch, daemon=True).start()
begin = time.perf_counter()
{work}
over.set()
print(time.perf_counter() - begin, peak[0] / 1000, file=sys.stderr)
"""
HISTORIES = """from freescale_tools.cli import app
app(sys.argv[1:], standalone_mode=False)"""
OPEN = """sys.path.insert(0, sys.argv[1])
from pathlib import Path
from eventlog import fast
from eventlog.per_sample import Rules
from fsdata import FreeScaleDataLoader
source = fast.source(Path(sys.argv[2]), Rules(), bucketed=1, time_window=86400)
FreeScaleDataLoader(source, fast.schema(Rules()), batch_size=8).close()"""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--events", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--check", action="store_true", help="compare every sample, of up to 2 million events")
    arguments = parser.parse_args()
    rows: list[list[Any]] = []
    for events in arguments.events or [1_000_000]:
        with tempfile.TemporaryDirectory(prefix="freescale-dlrm-v4-") as name:
            folder = Path(name)
            made = log.write(folder, events)
            rows += built(folder, made["events"])
            rows += samples(folder, made["events"])
            rows += sharing(folder, made["events"])
            rows += duplicates(folder, made["events"])
            rows += stragglers(folder, made["events"])
            if arguments.check and events <= MOST_CHECKED:
                rows += checked(folder, made["events"])
    emit(
        "dlrm_v4",
        "Samples of an event log by the rules of DLRMv4: three pools merged, two look-ups, seven crosses",
        COLUMNS,
        rows,
        notes=[
            "One by one: numpy over flat arrays in memory, in one process, or in the workers of a DataLoader.",
            "Memory: without pages of mapped files.",
            "Cores: at the processor time of 1,000 samples, without the time of the training loop.",
        ],
        results=arguments.results,
        data="synthetic log in the shape of Yambda's",
    )


def built(folder: Path, events: int) -> list[list[Any]]:
    buckets = -(-events // BUCKET_EVENTS)
    options = ["--by", "uid", "--time", "ts", "--out", folder / "histories", "--buckets", buckets, "--json"]
    table_s, table_mb = measured(HISTORIES, "histories", folder / "log", *options)
    open_s, open_mb = measured(OPEN, Path(__file__).parent, folder)
    begin = time.perf_counter()
    Log(folder).anchors(RULES)
    return [
        [events, "table of histories", table_s, None, "s"],
        [events, "opening it, with pools and anchors by day", open_s, time.perf_counter() - begin, "s"],
        [events, "peak memory of the table", table_mb, None, "MB"],
        [events, "peak memory of opening it", open_mb, None, "MB"],
    ]


def measured(work: str, *arguments: Any) -> tuple[float, float]:
    """(seconds, peak memory in MB) of a new Python process that does `work`."""
    command = [sys.executable, "-c", MEASURED.format(work=work), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{arguments}: {done.stderr}")
    seconds, peak = done.stderr.splitlines()[-1].split()
    return float(seconds), float(peak)


def samples(folder: Path, events: int) -> list[list[Any]]:
    """Processor time for 1,000 samples in both orders. Of numpy: a hundredth of them."""
    flat, rows = Log(folder), []
    for order, options in ORDERS.items():
        ours, number, of_events = processor_ms(fast.source(folder, RULES), fast.schema(RULES), options)
        plain, *_ = processor_ms(*fast.without_lookups(folder, RULES), options)
        copied, *_ = processor_ms(*fast.five_fields(folder, RULES, of_events // number), options)
        anchors = flat.anchors(RULES)
        few = min(SAMPLES // 4, len(anchors) // 2)
        chosen = np.random.default_rng(0).choice(anchors, few, replace=False) if options else anchors[few : 2 * few]
        begin = time.process_time()
        for first in range(0, len(chosen), BATCH):
            collate([flat.sample(anchor, RULES) for anchor in chosen[first : first + BATCH].tolist()])
        theirs = 1e6 * (time.process_time() - begin) / len(chosen)
        begin, of_workers = time.process_time(), _of_children()
        for _ in DataLoader(OneByOne(flat, chosen), batch_size=BATCH, num_workers=2, collate_fn=tensors):
            pass
        with_workers = 1e6 * (time.process_time() - begin + _of_children() - of_workers) / len(chosen)
        rows += [
            [events, f"{order}: events of a sample", of_events / number, None, ""],
            [events, f"{order}: processor time of 1,000 samples", ours, theirs, "ms"],
            [events, f"{order}: the same, numpy with 2 workers", ours, with_workers, "ms"],
            [events, f"{order}: without look-ups and crosses", plain, None, "ms"],
            [events, f"{order}: copying five fields of as many events", copied, None, "ms"],
            [
                events,
                f"{order}: cores for the {NODE_SAMPLES_S:,} samples/s of {NODE} B200",
                NODE_SAMPLES_S * ours / 1e6,
                NODE_SAMPLES_S * with_workers / 1e6,
                "cores",
            ],
        ]
    return rows


def processor_ms(source: ParquetSource, schema: Schema, options: dict[str, Any]) -> tuple[float, int, int]:
    """(milliseconds of processor time for 1,000 samples; samples, and their events, shared ones once).

    In the middle of an epoch: at its start a loader reads a shuffle window ahead, whose rows are no samples yet.
    """
    given: dict[str, Any] = {"batch_size": BATCH, "num_threads": 1, "prefetch": 0, **options}
    with FreeScaleDataLoader(source, schema, **given) as loader:
        batches = iter(loader)
        for _ in range(min(SAMPLES // BATCH, len(loader) // 2)):
            next(batches)
        number, of_events, begin = 0, 0, time.process_time()
        for batch in batches:
            number, of_events = number + BATCH, of_events + batch.features["item"].values().numel()
            if number >= SAMPLES:
                break
        spent = time.process_time() - begin
    return 1e6 * spent / number, number, of_events


def sharing(folder: Path, events: int) -> list[list[Any]]:
    """What `Sequence(share=...)` saves in user order. It needs histories without gaps, so not those of three pools."""
    rows = []
    for share, title in ((None, "without share"), ("uid", "with share")):
        source, schema = fast.five_fields(folder, RULES, EFFECTIVE, share=share)
        spent, number, of_events = processor_ms(source, schema, {})
        what = f"the last {EFFECTIVE:,} events of any kind, user order, {title}"
        rows += [
            [events, f"{what}: processor time of 1,000 samples", spent, None, "ms"],
            [events, f"{what}: events copied for a sample", of_events / number, None, ""],
        ]
    return rows


def duplicates(folder: Path, events: int) -> list[list[Any]]:
    """How many item ids of a rank's batch are duplicates: the mean of 8 batches of rank 0."""
    rows = []
    orders: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "user order": ({}, {}),
        "user order inside of days": ({"time_window": log.DAY}, {}),
        "shuffled": ({}, {"shuffle": True}),
    }
    for order, (of_source, options) in orders.items():
        source, schema = fast.items_alone(folder, RULES, **of_source)
        options = {"batch_size": NODE_BATCH, "drop_last": True, "rank": 0, "world_size": NODE, **options}
        shares = []
        with FreeScaleDataLoader(source, schema, num_threads=1, **options) as loader:
            loader.set_epoch((loader.windows or 0) // 2)
            for batch in islice(loader, 8):
                items = batch.features["item"].values()
                shares.append(100 * (1 - len(items.unique()) / len(items)))
        if shares:
            what = f"item ids of a batch that are duplicates, {NODE} ranks of {NODE_BATCH:,} samples, {order}"
            rows.append([events, what, float(np.mean(shares)), None, "%"])
    return rows


class OneByOne(Dataset[dict[str, np.ndarray]]):
    """Samples of these anchors."""

    def __init__(self, flat: Log, anchors: np.ndarray) -> None:
        self._flat, self._anchors = flat, anchors

    def __len__(self) -> int:
        return len(self._anchors)

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self._flat.sample(int(self._anchors[number]), RULES)


def tensors(samples: list[dict[str, np.ndarray]]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: tuple(map(torch.from_numpy, of)) for name, of in collate(samples).items()}  # type: ignore[misc]


def _of_children() -> float:
    """Seconds of processor time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stragglers(folder: Path, events: int) -> list[list[Any]]:
    """Straggler share at 64 ranks of 128 samples, in the order of time: dealt as they come, and balanced."""
    rules, cost = RULES, Polynomial()
    lengths: list[int] = []
    source, size = fast.source(folder, rules, order="time"), RANKS * PER_RANK
    with FreeScaleDataLoader(source, fast.schema(rules), batch_size=1024, num_threads=1) as loader:
        for batch in loader:
            lengths += batch.features["item"].lengths().tolist()
            if len(lengths) >= 8 * size:
                break
    shares = []
    for step in range(len(lengths) // size):
        of_samples = cost({"uih": np.array(lengths[step * size : (step + 1) * size])})
        dealt = of_samples.reshape(-1, RANKS).sum(axis=0)
        plan = pack(of_samples, RANKS, method="fbs+swap", home=np.repeat(np.arange(RANKS), PER_RANK))
        balanced = np.bincount(plan.rank, weights=of_samples, minlength=RANKS)
        shares.append([1 - load.mean() / load.max() for load in (balanced, dealt)])
    if not shares:
        return []
    ours, theirs = (100 * float(np.mean(of)) for of in zip(*shares, strict=True))
    return [
        [
            events,
            f"straggler share at {RANKS} ranks of {PER_RANK} samples, balanced and dealt round robin",
            ours,
            theirs,
            "%",
        ]
    ]


def checked(folder: Path, events: int) -> list[list[Any]]:
    flat, rows = Log(folder), []
    for rules in CHECKED:
        equal = sum(_equal(flat, rules, got) for got in _samples(folder, rules))
        wanted = len(flat.anchors(rules))
        if equal != wanted:
            raise SystemExit(f"{rules}: {equal:,} of {wanted:,} samples are equal")
        rows.append([events, f"samples that are equal, {rules}", equal, wanted, ""])
    return rows


def _samples(folder: Path, rules: Rules) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """(event, field -> values) of every sample of FreeScale, in order."""
    anchors = iter(Log(folder).anchors(rules).tolist())
    with FreeScaleDataLoader(fast.source(folder, rules), fast.schema(rules), batch_size=512, num_threads=1) as loader:
        for batch in loader:
            names = (*fast.HISTORY, *fast.CANDIDATE, "user", *CROSSES)
            values = {name: batch.features[name].values().numpy() for name in names}
            ends = batch.features["item"].lengths().cumsum(0).tolist()
            labels = batch.labels["label"]
            for number, (end, length) in enumerate(zip(ends, batch.features["item"].lengths().tolist(), strict=True)):
                found = {name: values[name][end - length : end] for name in fast.HISTORY}
                found |= {name: values[name][number : number + 1] for name in (*fast.CANDIDATE, "user", *CROSSES)}
                found["label"] = labels[number : number + 1].numpy()
                yield next(anchors), found


def _equal(flat: Log, rules: Rules, got: tuple[int, dict[str, np.ndarray]]) -> bool:
    anchor, found = got
    expected = flat.sample(anchor, rules)
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


if __name__ == "__main__":
    main()
