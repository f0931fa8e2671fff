"""Plans for modules on a device read neither batches whose copy to it is incomplete, nor tensors that are there."""

from typing import Any

import torch
from exact_configs import CONFIGS
from exact_model import batches, build, ids_of
from torchrec import KeyedJaggedTensor
from worlds import shared_world

from fscomm.tables.torchrec.binding import bind
from fscomm.tables.torchrec.module_view import InputDist, dist_input

ON_DEVICE = "_features_order_tensor", "_dim_per_key", "_kt_key_ordering", "_kjt_inverse_order"


def bound(size: int, name: str = "a") -> tuple[Any, Any]:
    """A module with means, and what it gets."""
    config = CONFIGS["pooled mixed"]
    model, _ = build(config, size)
    ids = ids_of(batches(config, 0, size, 0, 1)[0], name)
    return bind(name, model.module.embeddings[name], ranks_per_host=size), ids


def asks_in_host_memory(rank: int, size: int) -> bool:
    """The input dist runs on the host copy of the features. The tensors of the module are replaced by floats: using one
    as an index raises."""
    binding, features = bound(size)
    binding.create_input_dists(features)
    module = binding.module
    own = {each: tensor for each in ON_DEVICE if isinstance(tensor := getattr(module, each, None), torch.Tensor)}
    dists = [InputDist(dist) for dist in binding.input_dists]
    for each, tensor in own.items():
        module._buffers.pop(each, None)
        vars(module)[each] = tensor.float()
    dist_input(module, dists, module.create_context(), features, on_host=True)
    return {"_dim_per_key"} <= own.keys() and all(dist.sent is not None for dist in dists)


def test_plans_of_means_use_no_tensor_of_the_device() -> None:
    assert shared_world(1).run(asks_in_host_memory) == [True]


def creates_input_dists_of_an_incomplete_copy(rank: int, size: int) -> bool:
    binding, features = bound(size)
    garbage = torch.full_like(features.lengths(), -80)
    binding.create_input_dists(
        KeyedJaggedTensor(features.keys(), features.values(), lengths=garbage, stride=features.stride())
    )
    return bool(binding.input_dists_created)


def test_the_first_features_are_not_read_before_their_copy_is_complete() -> None:
    assert shared_world(1).run(creates_input_dists_of_an_incomplete_copy) == [True]
