"""A trial: before the first module of a kind is served in this process, a small one is, and compared with itself.

It is trained twice on the first two ranks, plainly and served. What forwards give and what the tables hold in the end
must be the same to the bit. This finds what changed in a version of the library that nobody has looked at yet.
"""

import contextlib
import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fscomm.device import device_of
from fscomm.engine.engine import Engine
from fscomm.engine.hooks import install_module_hooks
from fscomm.exchange.lost_peers import is_of_gloo
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import Binding
from fscomm.tables.shadow_kernels import memory
from fscomm.tables.sharding_library import Library, Trial
from fsranks.errors import PeerError, describe
from fsranks.network import hang_up
from fsranks.rank_context import RankContext

RANKS = 2  # that try it out for all: they all have the same versions
_HOST = torch.device("cpu")
_LOST = "a trial lost the other rank"
_tried: dict[str, str | None] = {}  # kind -> what went wrong


def tried() -> list[str]:
    """The kinds that need no trial in this process. One that only lost a rank says nothing of the library."""
    return sorted(kind for kind, why in _tried.items() if why is None or not why.startswith(_LOST))


def problems(
    library: Library,
    served: Mapping[str, Any],
    context: RankContext,
    *,
    tried_by_all: Collection[str],
    timeout_s: float,
) -> dict[str, str]:
    """Why modules cannot be served. Collective; blocks."""
    of_modules = {name: made for name, module in served.items() if (made := library.trial(module)) is not None}
    new = {trial.kind: trial for trial in of_modules.values() if trial.kind not in tried_by_all}
    ranks = list(range(min(RANKS, context.world_size)))
    for kind, trial in new.items():
        try:
            group = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=timeout_s))
        except RuntimeError as error:  # a rank did not come: when the ranks meet next, that one is named
            _tried[kind] = f"{_LOST}: {describe(error)}"
            continue
        try:
            with _nothing_left(), torch.random.fork_rng(devices=[]):
                _tried[kind] = _problem(library, trial, group, timeout_s) if context.rank in ranks else None
        finally:
            if context.rank in ranks:
                dist.destroy_process_group(group)
    return {name: why for name, trial in of_modules.items() if (why := _tried[trial.kind]) is not None}


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """What is made inside is gone at the end, in cycles, too. A forked process (a worker of a DataLoader) that collects
    a process group as garbage would end: threads of the group are not there."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()  # what was there before is not walked over
    try:
        yield
    finally:
        gc.collect()
        if not frozen:
            gc.unfreeze()


def causes(said: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """What ranks said, without those that only lost a rank which says why itself."""
    known = {name for of_rank in said for name, why in of_rank.items() if not why.startswith(_LOST)}
    return [
        {name: why for name, why in of_rank.items() if name not in known or not why.startswith(_LOST)}
        for of_rank in said
    ]


def _problem(library: Library, trial: Trial, group: Any, timeout_s: float) -> str | None:
    context = RankContext(rank=group.rank(), world_size=group.size(), group=group)
    try:
        with _HOST, torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            plain = _Trained(library, trial, group)
            for features in plain.batches:
                plain.train(features)
            served = _Trained(library, trial, group)
            served.train_served(context, timeout_s)
    except Exception as error:  # of a library that works differently
        hang_up(group._get_backend(_HOST), group.rank(), group.size())  # the other rank may wait for this one
        if isinstance(error, PeerError) or is_of_gloo(error):
            return f"{_LOST}: {describe(error)}"
        return f"a trial of {trial.kind} failed: {describe(error)}"
    if not _same(plain.tables(), served.tables()):
        return f"in a trial of {trial.kind} its tables were updated otherwise than without fscomm"
    if not _same(plain.outputs, served.outputs):
        return f"in a trial of {trial.kind} it gave other embeddings than without fscomm"
    return None


class _Trained:
    """A module of a trial."""

    def __init__(self, library: Library, trial: Trial, group: Any) -> None:
        self.batches = trial.batches(group.rank())
        self.outputs: list[torch.Tensor] = []
        self._library = library
        self._trial = trial
        self._module = trial.make(group)
        self._binding: Binding = library.bind("trial", self._module, 1, {})

    def train(self, features: Any) -> None:
        """One step, in which every number of the output has another gradient."""
        found = self._trial.tensors(self._module(features))
        self.outputs += [each.detach().clone() for each in found]
        torch.stack([(each * torch.arange(each.numel()).view_as(each)).sum() for each in found]).sum().backward()

    def train_served(self, context: RankContext, timeout_s: float) -> None:
        """All steps."""
        engine = Engine(
            [self._binding],
            context,
            Recorder(rank=context.rank),
            finder=FeatureFinder([], {}, problem=self._library.features_problem, make=self._library.make_features),
            device=device_of(_HOST),
            transport="gloo",
            strict=True,
            timeout_s=timeout_s,
        )
        try:
            with contextlib.ExitStack() as installed:
                install_module_hooks(engine, 0, installed)
                self._loop(engine)
        except BaseException as error:
            engine.abort(f"a trial failed: {describe(error)}")
            raise
        finally:
            engine.close("the trial is over")

    def tables(self) -> list[torch.Tensor]:
        kernels = [kernel for of_group in self._binding.kernels for kernel in of_group]
        return [part for kernel in kernels for part in memory(kernel, ("weights", "momentum1")).values()]

    def _loop(self, engine: Engine) -> None:
        """As a look-ahead has it: each batch is announced before the one before it is trained on. The first one runs
        plainly, but for maps: the second one would not be mapped from what it leaves."""
        coming = [*self.batches[1:], None]
        engine.announce_features([None if self._binding.maps is None else [(self.batches[0], None)]], [None])
        for features, following in zip(self.batches, coming, strict=True):
            if following is None:
                engine.end()
            else:
                engine.announce_features([[(following, None)]], [None])
            engine.hold(None)
            self.train(features)
            engine.resume(None)
        engine.finish()


def _same(plain: list[torch.Tensor], served: list[torch.Tensor]) -> bool:
    return len(plain) == len(served) and all(map(torch.equal, plain, served))
