"""What `fscomm.enable` serves: the modules that all ranks can serve, and that they describe alike."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from fscomm.engine import trial
from fscomm.errors import NotServedError
from fscomm.loop.feature_finder import FeatureFinder
from fscomm.plan.group_plan import compile_kernels
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import Binding
from fscomm.tables.sharding_library import Library, in_whole, of_all_ranks
from fscomm.transports.gloo_sums import unknown_orders
from fsranks.meeting import Meeting
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")
Features = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """The same on every rank.

    Attributes:
        found: the sharded modules by name. problems: why some of them, or parts of them, run plainly.
        modules: [M] what is served; a module that may be called several times stands there once for each call.
        finder: finds their features in a batch.
    """

    found: dict[str, Any]
    problems: dict[str, str]
    modules: list[Binding]
    finder: FeatureFinder


def agree_on_modules(
    library: Library,
    find: Callable[[], dict[str, Any]],
    features: Mapping[str, Features],
    *,
    calls: int,
    ranks_per_host: int,
    transport: str,
    strict: bool,
    context: RankContext,
    recorder: Recorder,
    meeting: Callable[[], Meeting],
    timeout_s: float,
) -> Agreed:
    """Collective; blocks. find: gives the sharded modules by name.

    Raises:
        ValueError: what `find` raises; hosts of unequal size.
        NotServedError: with `strict`, something would run plainly.
        MismatchError, PeerError: the ranks do not agree or do not come.
    """
    with meeting() as all_ranks:
        if context.world_size % ranks_per_host:
            raise ValueError(
                f"ranks_per_host={ranks_per_host}, but there are {context.world_size} ranks: every host must have "
                "equally many. Without ranks_per_host rows go straight to every rank"
            )
        compile_kernels()
        found = find()
        here = library.problems(found, context, calls)
        asked = {"transport": transport, "strict": strict, "calls": calls, "ranks_per_host": ranks_per_host}
        same = {"modules": ", ".join(found), **library.versions()}
        same |= {name: str(value) for name, value in asked.items()}
        told = all_ranks.agree(same, tell=json.dumps([here, trial.tried()]))
    said, tried = zip(*(json.loads(of_rank) for of_rank in told), strict=True)
    parts = {name: library.parts(name, module) for name, module in found.items()}
    problems = in_whole(of_all_ranks(said), parts)
    with meeting() as all_ranks:
        served = {name: module for name, module in found.items() if name not in problems}
        tried_by_all = set.intersection(*map(set, tried))
        here = trial.problems(library, served, context, tried_by_all=tried_by_all, timeout_s=timeout_s)
        adding: dict[str, Any] = {}
        for name, module in served.items():
            adding |= library.adds_parts(name, module, problems)
        here |= unknown_orders(adding, timeout_s=timeout_s)
        told = all_ranks.agree({}, tell=json.dumps(here))
    problems = in_whole(problems | of_all_ranks(trial.causes([json.loads(of_rank) for of_rank in told])), parts)
    note_fallbacks(recorder, problems, strict=strict)
    with meeting() as all_ranks:
        modules = [
            library.bind(name, module, ranks_per_host, problems)
            for name, module in found.items()
            if name not in problems
            for _ in range(calls)
        ]
        finder = FeatureFinder(
            [module.name for module in modules],
            {name: given for name, given in features.items() if name not in problems},
            problem=library.features_problem,
            make=library.make_features,
            **_search(library),
        )
        all_ranks.agree({f"module {module.name}": _layout(module) for module in modules})
    return Agreed(found=found, problems=problems, modules=modules, finder=finder)


def _search(library: Library) -> dict[str, Any]:
    """For features that a model builds from its batch, unless that extension is deleted."""
    if find_spec("fscomm.recipes") is None:
        return {}
    from fscomm.recipes.search import recipe

    return {"search": partial(recipe, make=library.make_features)}


def note_fallbacks(recorder: Recorder, problems: Mapping[str, str], *, strict: bool) -> None:
    """Say which modules run plainly and why. Raises NotServedError if `strict` and there are any."""
    for name, why in problems.items():
        recorder.fallback(name, why)
        log.warning("fscomm: %s runs plainly: %s", name, why)
    if strict and problems:
        raise NotServedError("; ".join(f"{name}: {why}" for name, why in problems.items()))


def _layout(module: Binding) -> str:
    return str([(each.sharding, each.dim, each.runs, each.pooling) for each in module.layouts])
