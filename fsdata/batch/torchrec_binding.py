"""The only file of fsdata that imports TorchRec, on first use: the import takes seconds."""

import functools
from itertools import accumulate
from typing import Any

import torch

from fsdata.batch.jagged_features import JaggedFeatures
from fsranks.libraries import keep_fx_notice_away


@functools.cache
def _torchrec() -> Any:
    """The module, or None where it is not installed."""
    try:
        import torchrec
    except ModuleNotFoundError as error:
        if error.name == "torchrec":
            keep_fx_notice_away()  # jagged tensors of torch cause the notice, too
            return None
        raise _broken(error) from error
    except ImportError as error:
        raise _broken(error) from error
    keep_fx_notice_away()
    return torchrec


def _broken(error: ImportError) -> ImportError:
    return ImportError(
        "fsdata yields features as a torchrec KeyedJaggedTensor, but the installed torchrec cannot be imported "
        f"({error}). Install it as described in the README's section 'Installing', or uninstall it to get jagged "
        "tensors of torch"
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
    `JaggedFeatures` where torchrec is not installed.

    length_per_key: the sum of the lengths of each key, if the caller has it on the host. Otherwise TorchRec computes it
    on the device of the lengths, and on CUDA waits for it.
    """
    torchrec = _torchrec()
    if torchrec is None:
        assert weights is None
        return JaggedFeatures.from_lengths(keys, values, lengths, stride)
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
    """Register `batch_type` with TorchRec's pipelines. It must have `to`, `record_stream` and `pin_memory`."""
    if _torchrec() is None:
        return
    from torchrec.streamable import Pipelineable

    Pipelineable.register(batch_type)
