"""A sharded module behind managed collision that is served: raw ids go to the owners, whose maps say which rows they
are."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torchrec.distributed.types import LazyAwaitable, NoWait
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.managed.guard import MapGuard
from fscomm.managed.maps import MapsAhead
from fscomm.tables.torchrec.binding import TorchRecBinding
from fscomm.tables.torchrec.module_view import Keep, ModuleView, through_callbacks
from fscomm.tables.torchrec.sharded import HOST


class ManagedBinding(TorchRecBinding):
    """Its input dists are those of the collection of maps: ids stay as they are."""

    __slots__ = ()

    @property
    def _asks(self) -> Any:
        return self.module._managed_collision_collection

    @property
    def whole_batches_only(self) -> str | None:
        return "managed collision maps the ids of a whole batch at once"

    @property
    def tells_rows(self) -> bool:
        return bool(self.module._return_remapped_features)

    def create_input_dists(self, features: KeyedJaggedTensor) -> None:
        super().create_input_dists(features)
        if not self.input_dists:
            self.input_dists = [_on_host(dist) for dist in self._asks._input_dists]

    def learn(self, given: list[Any], rows: Sequence[np.ndarray | None]) -> None:
        given.append([torch.from_numpy(of_group) for of_group in rows if of_group is not None])

    def output(self, features: KeyedJaggedTensor, given: list[Any], rows: list[torch.Tensor]) -> Any:
        if not self.tells_rows:
            return super().output(features, given, rows), NoWait(None)
        *given, mapped = given
        embeddings = super().output(features, given, rows)
        return embeddings, self._remapped(given[0], [of_group.to(self.device) for of_group in mapped])

    def _remapped(self, context: Any, rows: Sequence[torch.Tensor]) -> Any:
        """The features that the module returns where ids were mapped to `rows`, int64[N] of each group."""
        dists = [partial(through_callbacks, dist) for dist in self._asks._output_dists]
        of_groups = [of_group.unsqueeze(-1) for of_group in rows]  # as a look-up returns rows: of one column here
        changed = ModuleView(self._asks, _output_dists=dists, _kjt_list_to_tensor_list=lambda _: of_groups)
        return type(self._asks).output_dist(changed, context, None)

    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        super().on_gradient(output[0], then)

    def around_wait(self, output: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
        for each in output:
            if isinstance(each, LazyAwaitable):
                super().around_wait(each, guard)


def guarded(module: Any) -> dict[str, Any]:
    """What `bind` has to know of a module behind managed collision."""
    return {"kind": ManagedBinding, "guard": MapGuard(MapsAhead(module))}


def _on_host(dist: Any) -> Any:
    """A copy of an input dist, in host memory. It sends nothing."""
    copied = copy.copy(dist)
    for name in ("_parameters", "_buffers", "_modules"):
        setattr(copied, name, dict(vars(dist)[name]))
    for name, buffer in copied._buffers.items():
        copied._buffers[name] = buffer.to(HOST)
    copied._dist = Keep()
    return copied
