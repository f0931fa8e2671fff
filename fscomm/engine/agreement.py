"""What `fscomm.enable` serves: the modules that all ranks can serve, and that they describe alike.

Extensions are composed here: codecs, where communication is quantised, and the trial of the installed versions, where
`fscomm.verify` is there.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from fscomm.compose import compile_kernels, is_installed
from fscomm.engine.hooks import ServedForward
from fscomm.errors import NotServedError
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import Binding
from fscomm.tables.torchrec import torchrec_version
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")
Features = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]
_WRAPPERS = ("_dmp_wrapped_module", "module", "_orig_mod")  # what TorchRec, DDP and torch.compile add to a path
_VERSIONS = ("torch", "torchrec", "fbgemm_gpu")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The same on every rank.

    Attributes:
        found: the sharded modules by name. problems: why some of them, or groups of them, run plainly.
        modules: [M] what is served; a module that may be called several times is listed once for each call.
        finder: finds their features in a batch.
        forward_size: (ids that a forward of a sharded module looks up, bytes of the embeddings that it returns).
    """

    found: dict[str, Any]
    problems: dict[str, str]
    modules: list[Binding]
    finder: FeatureFinder
    forward_size: Callable[[Any, Any], tuple[int, int]] = lambda module, features: (0, 0)


def agree_on_modules(
    model: nn.Module,
    features: Mapping[str, Features],
    *,
    calls: int,
    ranks_per_host: int,
    parts: Sequence[int],
    transport: str,
    strict: bool,
    context: RankContext,
    recorder: Recorder,
    meeting: Callable[[], Meeting],
    timeout_s: float,
) -> Agreement:
    """Collective; blocks.

    Raises:
        ValueError: no sharded module, or one that another block serves; hosts of unequal size.
        NotServedError: with `strict`, something would run plainly.
        MismatchError, PeerError: the ranks do not agree or do not come.
    """
    given = {"transport": transport, "strict": strict, "calls": calls, "ranks_per_host": ranks_per_host, "parts": parts}
    same = {name: str(value) for name, value in given.items()} | {"verifies": str(is_installed("verify"))}
    try:
        from fscomm.tables.torchrec.binding import unquantised
        from fscomm.tables.torchrec.features import features_problem, forward_size, make_features
        from fscomm.tables.torchrec.requirements import MakeCodecs
        from fscomm.tables.torchrec.requirements import problems as problems_here
        from fscomm.tables.torchrec.sharded import (
            gloo_groups,
            group_names,
            is_managed,
            is_pooled,
            is_quantised,
            is_sharded,
        )
    except (ImportError, AttributeError) as error:
        lacks = f"torchrec {torchrec_version()} has not what this fscomm needs: {error}"
        agreed = _agree_to_run_plainly(model, features, lacks, same, meeting)
        note_fallbacks(recorder, agreed.problems, strict=strict)
        return agreed

    with meeting() as all_ranks:
        if context.world_size % ranks_per_host:
            raise ValueError(
                f"ranks_per_host={ranks_per_host}, but there are {context.world_size} ranks: every host must have "
                "equally many. Without ranks_per_host rows go straight to every rank"
            )
        if ranks_per_host > 1 and not is_installed("two_levels"):
            raise ValueError(f"ranks_per_host={ranks_per_host} takes fscomm.two_levels, which is not installed")
        compile_kernels()
        found = _sharded_modules(model, is_sharded)
        lacking = _lacking(found, {"bags": is_pooled, "managed": is_managed, "codecs": is_quantised})
        complete = {name: module for name, module in found.items() if name not in lacking}
        make_codecs: MakeCodecs = unquantised
        if any(map(is_quantised, complete.values())):
            from fscomm.codecs.quantised import quantised_codecs

            make_codecs = quantised_codecs
        problem_of_maps: Callable[[Any, int], str | None] = lambda module, calls: None  # noqa: E731
        if any(map(is_managed, complete.values())):
            from fscomm.managed.requirements import problem_of_maps
        here = lacking | problems_here(
            complete, context, calls=calls, make_codecs=make_codecs, problem_of_maps=problem_of_maps
        )
        same |= {"modules": ", ".join(found)} | {name: sys.modules[name].__version__ for name in _VERSIONS}
        said = [json.loads(of_rank) for of_rank in all_ranks.agree(same, tell=json.dumps(here))]
    # A problem of one rank is one of all: a module that some serve and others run plainly would exchange other things.
    groups = {name: group_names(name, module) for name, module in found.items()}
    problems = _in_whole(_of_all_ranks(said), groups)

    if is_installed("verify"):
        from fscomm.verify import trial

        trials = {name: _trial_of(module) for name, module in found.items() if name not in problems}
        problems |= trial.problems(trials, context, bind=_bind, meeting=meeting, timeout_s=timeout_s)
    with meeting() as all_ranks:
        adding: dict[str, Any] = {}
        for name, module in found.items():
            adding |= {} if name in problems else gloo_groups(name, module, problems)
        here = {}
        if adding:
            from fscomm.bags.gloo_sums import unknown_orders

            here = unknown_orders(adding, timeout_s=timeout_s)
        said = [json.loads(of_rank) for of_rank in all_ranks.agree({}, tell=json.dumps(here))]
    problems = _in_whole(problems | _of_all_ranks(said), groups)

    note_fallbacks(recorder, problems, strict=strict)
    with meeting() as all_ranks:
        modules: list[Binding] = [
            _bind(
                name,
                module,
                in_parts=max(parts, default=1) > 1,
                ranks_per_host=ranks_per_host,
                plainly=problems,
                make_codecs=make_codecs,
            )
            for name, module in found.items()
            if name not in problems
            for _ in range(calls)
        ]
        finder = FeatureFinder(
            [module.name for module in modules],
            {name: function for name, function in features.items() if name not in problems},
            problem=features_problem,
            make=make_features,
            **_search(make_features),
        )
        # Plans are made from layouts without an exchange, so ranks whose layouts differ must not begin.
        all_ranks.agree({f"module {module.name}": _layout(module) for module in modules})
    return Agreement(found=found, problems=problems, modules=modules, finder=finder, forward_size=forward_size)


def _search(make_features: Callable[..., Any]) -> dict[str, Any]:
    """For features that a model builds from its batch, unless that extension is deleted."""
    if not is_installed("recipes"):
        return {}
    from fscomm.recipes.search import recipe

    return {"search": partial(recipe, make=make_features)}


def note_fallbacks(recorder: Recorder, problems: Mapping[str, str], *, strict: bool) -> None:
    """Report which modules run plainly and why. Raises NotServedError if `strict` and there are any."""
    for name, why in problems.items():
        recorder.fallback(name, why)
        log.warning("fscomm: %s runs plainly: %s", name, why)
    if strict and problems:
        raise NotServedError("; ".join(f"{name}: {why}" for name, why in problems.items()))


def _agree_to_run_plainly(
    model: nn.Module,
    features: Mapping[str, Features],
    lacks: str,
    same: Mapping[str, str],
    meeting: Callable[[], Meeting],
) -> Agreement:
    """With a torchrec that fscomm cannot use, whose sharded modules are found by the names of their classes. Ranks that
    can use theirs give its version where this one gives the reason: all of them raise a MismatchError then."""
    with meeting() as all_ranks:
        found = _sharded_modules(model, lambda module: type(module).__name__.startswith("Sharded"))
        all_ranks.agree({**same, "modules": ", ".join(found), "torchrec": lacks})
    unknown = {name: function for name, function in features.items() if name not in found}
    finder = FeatureFinder([], unknown, problem=lambda _: lacks, make=lambda *_: None)
    return Agreement(found=found, problems=dict.fromkeys(found, lacks), modules=[], finder=finder)


def _bind(name: str, module: Any, *, in_parts: bool = False, **options: Any) -> Binding:
    """As `bind`, with what the extension of the module's kind adds. in_parts: steps may have several parts."""
    from fscomm.tables.torchrec.binding import bind
    from fscomm.tables.torchrec.sharded import dedups, is_managed

    if is_managed(module):
        from fscomm.managed.binding import guarded

        options |= guarded(module)
    elif in_parts and dedups(module):
        from fscomm.parts.dedup_binding import deduplicated

        options |= deduplicated()
    return bind(name, module, **options)


def _trial_of(module: Any) -> Any:
    """The trial that modules of the kind of `module` need."""
    from fscomm.tables.torchrec.sharded import is_managed

    if is_managed(module):
        from fscomm.managed.trial_module import trial_of
    else:
        from fscomm.verify.trial_modules import trial_of
    return trial_of(module)


def _lacking(found: Mapping[str, Any], extensions: Mapping[str, Callable[[Any], bool]]) -> dict[str, str]:
    """Why modules cannot be served that take an extension which is deleted. extensions: which modules take each."""
    missing = {extension: takes for extension, takes in extensions.items() if not is_installed(extension)}
    return {
        name: f"it takes fscomm.{extension}, which is not installed"
        for extension, takes in missing.items()
        for name, module in found.items()
        if takes(module)
    }


def _sharded_modules(model: nn.Module, is_sharded: Callable[[nn.Module], bool]) -> dict[str, Any]:
    """The outermost sharded modules of `model`, by name as the user sees it."""
    found = dict(_outermost(model, is_sharded))
    if not found:
        raise ValueError(
            f"{type(model).__name__} holds no sharded TorchRec module: shard it first (DistributedModelParallel)"
        )
    for name, module in found.items():
        forward = vars(module).get("forward")
        if isinstance(forward, ServedForward):
            if not forward.engine.over:
                raise ValueError(f"{name} is already served by another fscomm.enable: leave that block first")
            del module.forward  # a pipeline kept it, and put it back after the block
    return found


def _outermost(model: nn.Module, is_sharded: Callable[[nn.Module], bool]) -> Iterator[tuple[str, Any]]:
    """(name without wrappers, module) of those sharded modules of `model` that are inside no other one."""
    inside: list[str] = []
    for path, module in model.named_modules():
        if is_sharded(module) and not any(path.startswith(outer) for outer in inside):
            inside.append(path + ".")
            parts = (part for part in path.split(".") if part not in _WRAPPERS)
            yield ".".join(parts) or "model", module


def _of_all_ranks(problems: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """[W] problems that each rank found: a module runs plainly on all of them if one cannot serve it."""
    merged: dict[str, str] = {}
    for rank, of_rank in enumerate(problems):
        for name, why in of_rank.items():
            everywhere = all(other.get(name) == why for other in problems)
            merged.setdefault(name, why if everywhere else f"on rank {rank} {why}")
    return merged


def _in_whole(problems: Mapping[str, str], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The same problems, but a module none of whose sharding `groups` can be served is named in place of these."""
    merged = dict(problems)
    for name, of_module in groups.items():
        reasons = {group: merged[group] for group in of_module if group in merged}
        if reasons and (name in merged or len(reasons) == len(of_module)):
            merged = {each: why for each, why in merged.items() if each not in reasons}
            merged.setdefault(name, "; ".join(dict.fromkeys(reasons.values())))
    return merged


def _layout(module: Binding) -> str:
    return str([(each.sharding, each.dim, each.runs, each.pooling) for each in module.layouts])
