"""The tables of a TorchRec model, and a model without memory that has given tables."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from freescale_tools.console.errors import UsageError, first_line
from freescale_tools.plan.tables import Table, check_tables

_DTYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}


def named_model(spec: str) -> nn.Module:
    """The module that `package.module:NAME` names, or that NAME returns when it is called without arguments.

    Imports the package, from the working directory too. Raises UsageError if there is none.
    """
    package, _, name = spec.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(package)
        for part in name.split("."):
            found = getattr(found, part)
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:  # the user's own code runs here: whatever it raises is said
        raise UsageError(f"model {spec}: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.remove(here)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {spec} is {type(model).__name__}: a torch.nn.Module, or a callable of one, is needed")
    return model


def tables_of(model: nn.Module, *, name: str) -> tuple[Table, ...]:
    """The tables of every EmbeddingCollection and EmbeddingBagCollection, without lengths.

    Raises UsageError if there is none, and for element types other than float32 and float16.
    """
    found = []
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            configs: Sequence[Any] = module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollection):
            configs = module.embedding_configs()
        else:
            continue
        for config in configs:
            dtype = next((key for key, value in _DTYPES.items() if value == config.data_type), None)
            if dtype is None:
                raise UsageError(f"{name}: table {config.name} is {config.data_type}: {' or '.join(_DTYPES)} is needed")
            found.append(
                Table(
                    name=config.name, rows=config.num_embeddings, dim=config.embedding_dim,
                    features=tuple(config.feature_names), pooled=isinstance(module, EmbeddingBagCollection),
                    module=path, dtype=dtype,
                )
            )  # fmt: skip
    if not found:
        raise UsageError(f"{name} has no EmbeddingCollection and no EmbeddingBagCollection: nothing can be sharded")
    check_tables(found, name)
    return tuple(found)


def model_of(tables: Sequence[Table]) -> nn.Module:
    """A module with one collection per `module` of the tables, at its path, on the meta device: it takes no memory."""
    root = nn.Module()
    for path in dict.fromkeys(table.module for table in tables):
        inside = [table for table in tables if table.module == path]
        config: Any = EmbeddingBagConfig if inside[0].pooled else EmbeddingConfig
        configs = [
            config(
                name=table.name, num_embeddings=table.rows, embedding_dim=table.dim,
                feature_names=list(table.features), data_type=_DTYPES[table.dtype],
            )
            for table in inside
        ]  # fmt: skip
        kind = EmbeddingBagCollection if inside[0].pooled else EmbeddingCollection
        try:
            collection = kind(tables=configs, device=torch.device("meta"))
        except KeyError as error:  # names of attributes, and names with dots
            raise UsageError(f"TorchRec takes no such table into module {path!r}: {error.args[0]}") from error
        if not path:
            return collection
        *parents, last = path.split(".")
        holder = root
        for parent in parents:
            if not hasattr(holder, parent):
                holder.add_module(parent, nn.Module())
            holder = getattr(holder, parent)
        holder.add_module(last, collection)
    return root
