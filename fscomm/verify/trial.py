"""A trial of the installed versions: it is made before the first module of a kind is served.

The first two ranks train a small module of that kind twice, plainly and served. The outputs of all forwards and the
final tables must be bitwise identical. This finds changes in versions of TorchRec and fbgemm that fscomm was not
written for. The result is valid for the process; a trial that passed is not repeated by later processes with the same
versions (`passed_trials`).
"""

import contextlib
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fscomm.tables.torchrec.features import features_problem, make_features
from fscomm.verify import passed_trials
from fscomm.verify.trial_modules import RANKS, Trial, batches, numbers_of
from fsranks.errors import PeerError, describe
from fsranks.meeting import Meeting
from fsranks.network import hang_up
from fsranks.rank_context import RankContext

_HOST = torch.device("cpu")
Bind = Callable[[str, Any], Binding]
_LOST = "a trial lost the other rank"
_results: dict[str, str | None] = {}  # of this process, by kind: what went wrong


def problems(
    trials: Mapping[str, Trial],
    context: RankContext,
    *,
    bind: Bind,
    meeting: Callable[[], Meeting],
    timeout_s: float,
) -> dict[str, str]:
    """Why modules cannot be served, by name; the same on all ranks. Collective; blocks.

    trials: of each module, the one that it needs. bind: describes a module of this name.
    """
    setting = {"ranks": min(RANKS, context.world_size), "cuda": torch.cuda.is_available()}
    with meeting() as all_ranks:
        known = known_results(trials.values(), setting)
        said = [json.loads(of_rank) for of_rank in all_ranks.agree({}, tell=json.dumps(known))]
    # Ranks may know different results: on other hosts other trials have passed, and a rank may be a new process.
    known_by_all = set.intersection(*map(set, said))
    results = {kind: _of_all_ranks([of_rank[kind] for of_rank in said]) for kind in known_by_all}
    if new := {trial.kind: trial for trial in trials.values() if trial.kind not in known_by_all}:
        with meeting() as all_ranks:
            here = {kind: _tried(trial, bind, context, timeout_s) for kind, trial in new.items()}
            said = [json.loads(of_rank) for of_rank in all_ranks.agree({}, tell=json.dumps(here))]
        results |= {kind: _of_all_ranks([of_rank[kind] for of_rank in said]) for kind in new}
        _results.update(results)
        passed_trials.add([trial for kind, trial in new.items() if results[kind] is None], setting)
    return {name: why for name, trial in trials.items() if (why := results[trial.kind]) is not None}


def known_results(trials: Iterable[Trial], setting: Mapping[str, Any]) -> dict[str, str | None]:
    """By kind, of those that need no trial on this rank. A trial that lost a rank shows nothing about the versions."""
    here = {kind: why for kind, why in _results.items() if why is None or not why.startswith(_LOST)}
    return dict.fromkeys(sorted(passed_trials.passed(trials, setting))) | here


def _of_all_ranks(said: Sequence[str | None]) -> str | None:
    """Why a trial failed: the reason of a rank that did not just lose the other one, if there is any."""
    failed = sorted((why.startswith(_LOST), why) for why in said if why is not None)
    return failed[0][1] if failed else None


def _tried(trial: Trial, bind: Bind, context: RankContext, timeout_s: float) -> str | None:
    """What went wrong in a trial on this rank; None on ranks that take no part. Collective over all ranks."""
    ranks = list(range(min(RANKS, context.world_size)))
    try:
        group = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:  # a rank is missing: the next meeting names it
        return f"{_LOST}: {describe(error)}"
    if context.rank not in ranks:
        return None
    try:
        with _nothing_left(), torch.random.fork_rng(devices=[]):
            return _problem(trial, bind, group, timeout_s)
    finally:
        dist.destroy_process_group(group)


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """Collects all garbage that was made inside, cycles too. A forked process (a worker of a DataLoader) that collected
    a process group would crash, as it does not have the threads of the group."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()  # so that the collection only visits objects that were made inside
    try:
        yield
    finally:
        gc.collect()
        if not frozen:
            gc.unfreeze()


def _problem(trial: Trial, bind: Bind, group: Any, timeout_s: float) -> str | None:
    context = RankContext(rank=group.rank(), world_size=group.size(), group=group)
    try:
        with _HOST, torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            plain = _Trained(trial, bind, group)
            for features in plain.batches:
                plain.train(features)
            served = _Trained(trial, bind, group)
            served.train_served(context, timeout_s)
    except Exception as error:  # of a version that works differently: any
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

    def __init__(self, trial: Trial, bind: Bind, group: Any) -> None:
        self.batches = batches(group.rank(), trial.ids)
        self.outputs: list[torch.Tensor] = []
        self._module = trial.make(group)
        self._binding = bind("trial", self._module)

    def train(self, features: Any) -> None:
        """One step, in which every number of the output has another gradient."""
        numbers = numbers_of(self._module(features))
        self.outputs.append(numbers.detach().clone())
        (numbers * torch.arange(len(numbers))).sum().backward()

    def train_served(self, context: RankContext, timeout_s: float) -> None:
        """All steps."""
        engine = Engine(
            [self._binding],
            context,
            Recorder(rank=context.rank),
            finder=FeatureFinder([], {}, problem=features_problem, make=make_features),
            device=device_of(_HOST),
            transport="gloo",
            strict=True,
            timeout_s=timeout_s,
        )
        try:
            with contextlib.ExitStack() as hooks:
                install_module_hooks(engine, 0, hooks)
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
        """As a look-ahead does it: each batch is announced before the one before it is trained on. The first one is not
        announced, and runs plainly, unless forwards reassign rows: the rows of the second batch depend on its state."""
        following_batches = [*self.batches[1:], None]
        engine.announce_features([None if self._binding.guard.reassigns is None else [(self.batches[0], None)]], [None])
        for features, following in zip(self.batches, following_batches, strict=True):
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
