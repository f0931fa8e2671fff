"""What the ranks of `exposed.py` do when called: make models and batches, run blocks of steps, compare tables."""

import contextlib
import gc
import hashlib
import importlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from exposure.ids import collision_bytes, independent, rates, windows
from exposure.model import Batch, alone, clock, products_per_s, sharded
from exposure.modes import Trained, mode_of
from exposure.shape import Shape
from torchrec.modules import hash_mc_evictions
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from freescale_tools.write.synth.collisions import colliding


class Stream:
    """The batches of one rank, made when first asked for and kept: every mode trains on the same ones."""

    def __init__(self, shape: Shape, *, rate: float, skew: float) -> None:
        self._shape = shape
        ids = shape.events * dist.get_world_size()
        self._chains = [
            independent(rows=rows, ids=ids, skew=skew, seed=table)
            if shape.pooled
            else colliding(rows=rows, ids=ids, rate=rate, skew=skew, seed=table)
            for table, rows in enumerate(shape.table_rows)
        ]
        self._made: list[Batch] = []
        self._before: list[np.ndarray] | None = None
        self.rates: list[tuple[float, float]] = []
        self.collision_bytes: list[tuple[float, float]] = []
        self.distinct: list[float] = []

    def batches(self, first: int, count: int) -> list[Batch]:
        while len(self._made) < first + count:
            self._made.append(self._make())
        return self._made[first : first + count]

    def _make(self) -> Batch:
        shape, rank = self._shape, dist.get_rank()
        events = [next(chain) for chain in self._chains]
        whole = events
        if shape.users:
            users = shape.users * dist.get_world_size()
            whole = [windows(ids, users=users, length=shape.ids_per_sample) for ids in events]
        travels = events if shape.dedup else whole
        if self._before is not None:
            self._count(travels)
        self._before = travels
        each = [ids[rank * shape.ids : (rank + 1) * shape.ids] for ids in whole]
        self.distinct.append(sum(len(np.unique(ids)) for ids in each) / sum(map(len, each)))
        mine = np.concatenate(each)
        features = KeyedJaggedTensor(
            keys=list(shape.features),
            values=torch.from_numpy(mine),
            lengths=torch.full((len(shape.sharding) * shape.samples,), shape.ids_per_sample),
            stride=shape.samples,
        )
        labels = torch.from_numpy((whole[0][: shape.samples] % 2).astype(np.float32))
        return Batch(features=features, labels=labels)

    def _count(self, whole: list[np.ndarray]) -> None:
        assert self._before is not None
        pairs = list(zip(self._before, whole, strict=True))
        self.rates += [rates(*pair) for pair in pairs]
        ranks, row_bytes = dist.get_world_size(), 4 * self._shape.width
        counted = np.array(
            [
                collision_bytes(*pair, ranks=ranks, rows=rows, row_bytes=row_bytes)
                for pair, rows in zip(pairs, self._shape.table_rows, strict=True)
            ]
        )
        self.collision_bytes.append(tuple(counted.sum(0)))


def prepare(state: dict[str, Any], *, shape: dict[str, Any], modes: list[str]) -> None:
    """Build one model per mode, all with the same weights."""
    state["shape"] = made = Shape(**{**shape, "sharding": tuple(shape["sharding"]), "pooled": tuple(shape["pooled"])})
    state["models"] = models = {}
    for mode in modes:
        model, optimizer = alone(made) if mode == "compute" else sharded(made, pec=mode == "pec")
        models[mode] = Trained(model=model, optimizer=optimizer)


def data(state: dict[str, Any], *, rate: float, skew: float, steps: int) -> dict[str, Any]:
    """Start a new stream of batches for all modes, `steps` of them made at once.

    Returns its collision rates, and the bytes per step on the busiest link if nothing but collisions were exposed.
    """
    state["stream"] = stream = Stream(state["shape"], rate=rate, skew=skew)
    state["position"] = dict.fromkeys(state["models"], 0)
    stream.batches(0, steps)
    by_occurrence, by_row = np.mean(stream.rates, axis=0).tolist()
    gradients, rows = np.mean(stream.collision_bytes, axis=0).tolist()
    return {
        "by occurrence": by_occurrence,
        "by distinct row": by_row,
        "gradient bytes": gradients,
        "row bytes": rows,
        "distinct": float(np.mean(stream.distinct)),
    }


def pace(state: dict[str, Any]) -> float:
    """Matrix products a second, as slow as on the slowest rank."""
    return products_per_s()


def block(
    state: dict[str, Any],
    *,
    mode: str,
    warm: int,
    steps: int,
    tail: int,
    compute_s: float,
    after_s: float = 0.0,
    products: float = 0.0,
) -> dict[str, Any]:
    """Train `warm + steps + tail` steps in one mode behind a barrier; the figures of the middle `steps`.

    `after_s` is the part of the compute between the backward and the next step; TorchRec's pipelines do not take it.

    Returns seconds and CPU seconds per step, and what the mode says itself.
    """
    clock.set(compute_s, after_s=after_s, products_per_s=products)
    first = state["position"][mode]
    batches = state["stream"].batches(first, warm + steps + tail)
    state["position"][mode] = first + len(batches)
    marks: list[float] = []
    cpu: list[float] = []  # of all threads of this rank

    def stepped() -> None:
        marks.append(time.perf_counter())
        cpu.append(time.process_time())

    torch.manual_seed(first)  # rows that are evicted get new weights at random
    gc.collect()
    gc.freeze()  # a full collection looks through all that was ever imported: 260 ms in some step of some mode
    dist.barrier()
    with at_hour(first):  # ids of the blocks before may be evicted
        stepped()
        said = mode_of(mode)(state["models"][mode], batches, stepped)
    dist.barrier()
    steps_s = [after - before for before, after in itertools.pairwise(marks[warm : warm + steps + 1])]
    cpu_s = (cpu[warm + steps] - cpu[warm]) / steps
    return {"step_s": sum(steps_s) / steps, "steps_s": steps_s, "cpu_s": cpu_s, "said": said[warm : warm + steps]}


@contextlib.contextmanager
def at_hour(hour: int) -> Iterator[None]:
    with mock.patch.object(hash_mc_evictions, "time", SimpleNamespace(time=lambda: 3600.0 * hour)):
        yield


def digests(state: dict[str, Any]) -> dict[str, str]:
    """A hash of this rank's shards of all tables and of the dense weights, per mode."""
    found = {}
    for mode, trained in state["models"].items():
        if mode != "compute":
            digest = hashlib.sha256()
            for _, tensor in sorted(_tensors(trained.model)):
                digest.update(tensor.detach().contiguous().numpy().tobytes())
            found[mode] = digest.hexdigest()
    return found


def forget_peak(state: dict[str, Any]) -> None:
    """Count memory from here: models are made, and fscomm and its compiled kernels are loaded in every mode."""
    importlib.import_module("fscomm.comm")
    Path("/proc/self/clear_refs").write_text("5")
    state["resident"] = _status("VmRSS")


def peak(state: dict[str, Any]) -> int:
    """Most resident memory of this rank since `forget_peak`, over what it had then, in bytes."""
    return _status("VmHWM") - state["resident"]


def _status(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in model.state_dict().items():
        # PEC has its collection one level deeper.
        short = name.replace("._embedding_collection", "")
        if hasattr(value, "local_shards"):
            for number, shard in enumerate(value.local_shards()):
                yield f"{short}/{number}", shard.tensor
        else:
            yield short, value
