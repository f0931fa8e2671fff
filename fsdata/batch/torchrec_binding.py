"""The one place of fsdata that imports TorchRec, on first use (it takes seconds)."""

import functools
from itertools import accumulate
from typing import Any

import torch

from fsdata.batch.jagged_features import JaggedFeatures
from fsranks.libraries import keep_fx_notice_away


@functools.cache
def _torchrec() -> Any:
    """None where it is not installed."""
    try:
        import torchrec
    except ModuleNotFoundError as error:
        if error.name == "torchrec":
            keep_fx_notice_away()  # jagged tensors of torch lead to it, too
            return None
        raise _broken(error) from error
    except ImportError as error:
        raise _broken(error) from error
    keep_fx_notice_away()
    return torchrec


def _broken(error: ImportError) -> ImportError:
    return ImportError(
        "fsdata delivers features as a torchrec KeyedJaggedTensor, and torchrec is there but cannot be imported "
        f"({error}). Install it as the README's section 'Installing' says, or take it away to get jagged tensors of "
        "torch"
    )


def keyed_jagged_tensor(
    keys: tuple[str, ...],
    values: torch.Tensor,
    lengths: torch.Tensor,
    stride: int,
    weights: torch.Tensor | None = None,
    length_per_key: list[int] | None = None,
) -> Any:
    """A KeyedJaggedTensor of values and weights [sum of lengths] and lengths [len(keys) * stride], key after key; a
    `JaggedFeatures` of the same where torchrec is not installed.

    length_per_key: the sums of the lengths of each key, if the caller knows them. TorchRec would compute them where the
    lengths lie, and on CUDA wait for them.
    """
    torchrec = _torchrec()
    if torchrec is None:
        assert weights is None
        return JaggedFeatures.of(keys, values, lengths, stride)
    return torchrec.KeyedJaggedTensor(
        keys=list(keys),
        values=values,
        weights=weights,
        lengths=lengths,
        stride=stride,
        length_per_key=length_per_key,
        offset_per_key=None if length_per_key is None else list(accumulate(length_per_key, initial=0)),
    )


def is_keyed_jagged_tensor(value: object) -> bool:
    """Whether `value` is a KeyedJaggedTensor; imports nothing for objects of other modules."""
    if not type(value).__module__.startswith("torchrec"):
        return False
    return isinstance(value, _torchrec().KeyedJaggedTensor)


@functools.cache
def register_pipelineable(batch_type: type) -> None:
    """Let TorchRec's pipelines accept `batch_type`, which has `to`, `record_stream` and `pin_memory`."""
    if _torchrec() is None:
        return
    from torchrec.streamable import Pipelineable

    Pipelineable.register(batch_type)
