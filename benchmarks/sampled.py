"""What stochastic length costs in the loader: CPU of a sample, beside plain truncation to as many events.

    python benchmarks/sampled.py [--rounds 9] [--alpha 1.7]

One process, one decoding thread, lists of some thousand events in zstd pages. A first epoch of every way is not
counted; then all ways take turns, and the least processor time of each counts. The cut is the one with the same mean
length as the sampled histories.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common.table import argument_parser, emit

from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence, StochasticLength
from fsdata.sampling.stochastic_length import short_length, whole_probability

ROWS, GROUP, BATCH, MOST = 3_000, 300, 64, 8192
FIELDS = ("item_id", "action", "timestamp")


def write(path: Path) -> np.ndarray:
    """int64 [ROWS], the lengths of the histories in the file."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(7.8, 0.9, ROWS).astype(np.int64), 1, 2 * MOST)
    ends = np.cumsum(lengths)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    columns = {
        "item_id": random.zipf(1.2, ends[-1]) % 1_000_000,
        "action": random.integers(0, 20, ends[-1]),
        "timestamp": np.cumsum(random.integers(0, 100, ends[-1])),
        "price": random.random(ends[-1]).astype(np.float32),
    }
    lists = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}
    pq.write_table(pa.table(lists), path, row_group_size=GROUP, compression="zstd")
    return lengths


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alpha", type=float, default=1.7)
    arguments = parser.parse_args()
    uniform = StochasticLength(alpha=arguments.alpha)
    newest = StochasticLength(alpha=arguments.alpha, select="newest")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        lengths = np.minimum(write(path), MOST)
        whole = whole_probability(uniform, MOST, lengths)
        mean = float((whole * lengths + (1 - whole) * short_length(uniform, MOST)).mean())
        cut = next(most for most in range(1, MOST + 1) if np.minimum(lengths, most).mean() >= mean)
        ways = {
            f"truncated to {MOST:,}": {"max_length": MOST},
            f"truncated to {cut:,}": {"max_length": cut},
            "sampled, newest": {"max_length": MOST, "sample": newest},
            "sampled, uniform": {"max_length": MOST, "sample": uniform},
        }
        for shuffle in (False, True):
            cpu = _measured(path, ways, shuffle, arguments.rounds)
            plain = cpu[f"truncated to {cut:,}"][0]
            rows += [
                ["shuffled" if shuffle else "in order", way, events / ROWS, 1e6 * seconds / ROWS, seconds / plain]
                for way, (seconds, events) in cpu.items()
            ]
    emit(
        "sampled",
        "CPU of a sample by how its history is shortened",
        ["order", "histories", "mean events", "us of CPU per sample", "of truncation to as many events"],
        rows,
        notes=[f"alpha {arguments.alpha:g}: {(1 - whole).mean():.0%} of the histories are shortened in an epoch."],
        results=arguments.results,
        data="lognormal lengths, random numbers",
    )


def _measured(path: Path, ways: dict[str, dict], shuffle: bool, rounds: int) -> dict[str, tuple[float, int]]:
    """(least CPU seconds of an epoch, events of the last one) of each way."""
    loaders = {
        way: FreeScaleDataLoader(
            ParquetSource(path),
            Schema(sequences=[Sequence("uih", FIELDS, ("price",), **options)]),
            batch_size=BATCH,
            num_threads=1,
            shuffle=shuffle,
            drop_last=False,
        )
        for way, options in ways.items()
    }
    found = dict.fromkeys(ways, (float("inf"), 0))
    for number in range(rounds + 1):
        for way, loader in loaders.items():
            start = time.process_time()
            events = sum(batch.features["item_id"].values().numel() for batch in loader)
            seconds = time.process_time() - start if number else float("inf")
            found[way] = min(found[way][0], seconds), events
    for loader in loaders.values():
        loader.close()
    return found


if __name__ == "__main__":
    main()
