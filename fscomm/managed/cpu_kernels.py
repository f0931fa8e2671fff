"""What managed collision needs in training and fbgemm has on CUDA only, for tables on the CPU.

`HashZchManagedCollisionModule` (MPZCH) writes its identities by `zero_collision_hash`, which on the CPU only reads
(fbgemm 1.8). Rows whose slot has a new id are reset by `reset_weight_momentum`, which has no CPU kernel at all.

Without them a model with such tables cannot be trained on a machine without a GPU, with or without fscomm: only MCH
can, under other optimizers than row-wise Adagrad.
"""

import contextlib
import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn

from fscomm.managed.zero_collision import EVICTED, assign_slots

_HASH, _RESET = "_zero_collision_hash", "reset_embedding_weight_momentum"
_NO_FLAGS, _NO_HOURS = torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=torch.int32)
_LRU = 1


def install(model: nn.Module) -> Callable[[], None]:
    """Let the managed collision of `model` train on the CPU, until what this returns is called.

    Sharded or not. To be called after sharding, which makes new modules of the old ones. What lies on a GPU, and what
    has these kernels already, stays as it is. They are attributes of the instances: no operator is registered, and
    nothing of a `state_dict()` changes.

    Ids get their slots one after another, in the order in which the module gets them, so a run repeats to the bit. On
    CUDA, where all ids of a call probe at once, it does not, if two of them want the same slot.

    Raises:
        ValueError: a table counts its ids (`track_id_freq`), or has no row for ids without a slot (`disable_fallback`),
            or this TorchRec calls fbgemm's operator so that no other one can be put in its place.
    """
    with contextlib.ExitStack() as installed:
        for name, module in model.named_modules():
            if hasattr(module, "_hash_zch_identities") and module.device.type == "cpu":
                _check(name, module)
                _compile()
                _set(installed, module, _HASH, zero_collision_hash)
            for kernel, _ in getattr(module, "_table_to_tbe_and_index", {}).values():  # of sharded collections
                if kernel.current_device.type == "cpu":
                    _set(installed, kernel, _RESET, partial(reset_rows, kernel))
        return installed.pop_all().close


def trains(module: Any) -> bool:
    """Whether a `HashZchManagedCollisionModule` on the CPU can be trained."""
    return _HASH in vars(module)


def _check(name: str, module: Any) -> None:
    wrong = [option for option in ("track_id_freq", "disable_fallback") if getattr(module, f"_{option}", False)]
    if not hasattr(module, _HASH):
        version = importlib.metadata.version("torchrec")
        raise ValueError(f"MPZCH cannot train on the CPU with torchrec {version} ({name}): use 1.7 or newer, or a GPU")
    if wrong:
        raise ValueError(f"{name} cannot train on the CPU with {wrong[0]}: make the module without it, or use a GPU")


def _compile() -> None:
    """Not in the first step, when other ranks wait."""
    ids = torch.empty(0, dtype=torch.int64)
    zero_collision_hash(input=ids, identities=ids.view(0, 1), max_probe=1, local_sizes=ids, offsets=ids)


def _set(installed: contextlib.ExitStack, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    if name not in vars(module):
        setattr(module, name, function)
        installed.callback(delattr, module, name)


def zero_collision_hash(
    *,
    input: torch.Tensor,
    identities: torch.Tensor,
    max_probe: int,
    local_sizes: torch.Tensor,
    offsets: torch.Tensor,
    readonly: bool = False,
    metadata: torch.Tensor | None = None,
    input_metadata: torch.Tensor | None = None,
    eviction_threshold: int = -1,
    eviction_policy: int = 0,
    num_reserved_slots: int = -1,
    opt_in_prob: int = -1,
    opt_in_rands: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The slot int64[N] of each id, and the slots of which an id was evicted, in order; None if none can be.

    As `fbgemm::zero_collision_hash` with these names on CUDA: input int64[N], identities int64[Z, 1], metadata
    int32[Z, 1] hours at which slots expire, input_metadata int32[N] those of the ids; sizes and offsets int64[N] of
    the buckets.
    """
    if input.dtype != identities.dtype:
        raise TypeError(f"ids are {input.dtype}, but a table of MPZCH has ids of {identities.dtype}: convert them")
    if outside := input[(offsets < 0) | (offsets + local_sizes > len(identities))].tolist():
        raise ValueError(f"the id {outside[0]} belongs to a bucket of another rank: ids must not be negative")
    evicts = metadata is not None  # never where it only reads
    slots, outcomes = torch.empty_like(input), torch.empty(len(input), dtype=torch.uint8)
    in_reserve = max(num_reserved_slots, 0) if eviction_policy != _LRU else 0  # CUDA's LRU kernel knows of none
    refused = _NO_FLAGS if opt_in_rands is None or not in_reserve else opt_in_rands >= opt_in_prob
    arrays = [each.contiguous().numpy() for each in (input, local_sizes, offsets)]
    assign_slots(
        *arrays,
        max_probe,
        in_reserve,
        refused.numpy(),
        input_metadata.numpy() if evicts and input_metadata is not None else _NO_HOURS.numpy(),
        eviction_threshold,
        eviction_policy == _LRU,
        readonly,
        identities.detach().view(-1).numpy(),
        metadata.view(-1).numpy() if evicts and metadata is not None else _NO_HOURS.numpy(),
        slots.numpy(),
        outcomes.numpy(),
    )
    for written in (identities, metadata) if not readonly else ():
        if written is not None:
            torch.autograd.graph.increment_version(written)
    return slots, slots[outcomes == EVICTED].unique() if evicts else None


def reset_rows(
    kernel: Any,
    pruned_indices: torch.Tensor,
    pruned_indices_offsets: torch.Tensor,
    logical_table_ids: torch.Tensor,
    buffer_ids: torch.Tensor,
) -> None:
    """Rows become 0, with their state of row-wise Adagrad; of other optimizers nothing changes, as in fbgemm 1.8.

    pruned_indices: int64, rows of all tables, one after another. logical_table_ids: the number of each table.
    pruned_indices_offsets: where its rows begin and end, at its number in buffer_ids.
    """
    if kernel.optimizer != EmbOptimType.EXACT_ROWWISE_ADAGRAD:
        return
    weights, states = kernel.split_embedding_weights(), kernel.split_optimizer_states()
    ends = pruned_indices_offsets.tolist()
    for table, buffer in zip(logical_table_ids.tolist(), buffer_ids.tolist(), strict=True):
        rows = pruned_indices[ends[buffer] : ends[buffer + 1]]
        for of_table in (weights[table], states[table][0]):
            of_table.data.index_fill_(0, rows, 0)  # unseen by autograd, as what an operator on CUDA writes
