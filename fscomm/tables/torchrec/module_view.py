"""TorchRec's own forward of a sharded module, with some of its parts replaced.

A forward sends ids to the owners of rows, looks the rows up there, and sends them back: one input dist, one look-up and
one output dist for each sharding group. For what is served these three are replaced. All that is between them (the
order of features, index dedup, means, how the output is put together) is done by TorchRec's methods, in whatever
version is installed. They are called with a view of the module, so nothing is ever replaced on the module itself, which
other threads may use at that time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import NoWait

from fscomm.tables.torchrec.sharded import HOST


def dist_input(
    module: Any,
    input_dists: Sequence[Any],
    context: Any,
    features: Any,
    *,
    on_host: bool = False,
    without_dedup: bool = False,
) -> Any:
    """[groups of the module] what the look-ups get from these input dists. Blocks if one of them does.

    on_host: the features are in host memory, wherever the module is.
    """
    changed: dict[str, Any] = {"_input_dists": input_dists}
    if without_dedup:
        changed["_use_index_dedup"] = False
    if on_host:
        changed["_has_mean_pooling_callback"] = False  # the divisor is a device tensor that only the forward needs
        if getattr(module, "_features_order", None):
            changed["_features_order_tensor"] = torch.tensor(module._features_order, dtype=torch.int32)
    return type(module).input_dist(ModuleView(module, **changed), context, features).wait().wait()


def output(module: Any, context: Any, given: Any, rows: Sequence[torch.Tensor | None]) -> Any:
    """What the module's forward returns if its output dists return `rows`. rows: by group; None: its own look-up and
    output dist run."""
    lookups, output_dists = list(module._lookups), list(module._output_dists)
    for group, of_group in enumerate(rows):
        if of_group is not None:
            lookups[group] = partial(_give, of_group)
            output_dists[group] = partial(through_callbacks, output_dists[group])
    changed = ModuleView(module, _lookups=lookups, _output_dists=output_dists)
    return type(module).compute_and_output_dist(changed, context, given)


class InputDist:
    """Replaces an input dist. What that would send stays on this rank, in host memory, where plans are made.

    sent: the KJT, its keys in the order of the ranks that get them. dist: an input dist that sends nothing (`Keep`).
    """

    def __init__(self, dist: Callable[[Any], Any]) -> None:
        self.dist = dist
        self.sent: Any = None

    def __call__(self, features: Any) -> Any:
        self.sent = self.dist(features if features.device() == HOST else features.to(HOST))
        return pass_by(features)


class Keep(nn.Module):
    """Replaces the all-to-all of an input dist: returns the KJT that would have been sent."""

    def forward(self, features: Any) -> Any:
        return features


def pass_by(features: Any) -> Any:
    """Replaces an input dist that is not needed. Twice awaitable, as sizes are awaited before ids."""
    return NoWait(NoWait(features))


class ModuleView:
    """A module as its own methods see it, with some attributes replaced. Attributes are set on the module itself."""

    def __init__(self, module: Any, **parts: Any) -> None:
        vars(self).update(parts, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_module"], name, value)


def _give(rows: torch.Tensor, _: Any) -> torch.Tensor:
    return rows


def through_callbacks(dist: Any, rows: torch.Tensor, _: Any) -> Any:
    """Replaces an output dist whose `rows` have been exchanged."""
    for callback in getattr(dist, "_callbacks", None) or ():  # column-wise: puts columns of a table together
        rows = callback(rows)
    return NoWait(rows)
