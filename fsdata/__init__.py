"""fsdata: Parquet sources -> jagged samples -> batches of equal cost on all ranks (the FreeScale DataLoader).

The way of a row: `sources` and `schema` say what users want; `catalog` finds files and columns; `order` says which row
comes when; `decode` reads rows; `balance` moves them between ranks; `nodes` make a `batch` of them, which the `loader`
hands out. `kernels` copy; `options` checks what users pass; `errors` are the errors of all of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fsdata.errors import CorruptFileError, DataError, FreeScaleError, MismatchError, PeerError, SchemaError, StateError

if TYPE_CHECKING:
    from fsdata.balance.cost import CostModel, Polynomial, Power, Segmented, fit
    from fsdata.balance.options import Balance
    from fsdata.balance.packing import Plan, pack
    from fsdata.batch.batch import Batch, StepStats, global_mean
    from fsdata.batch.jagged import Jagged, Shared, expand, segment_mask
    from fsdata.embedding.embedding_balance import EmbeddingBalance
    from fsdata.growing.follow import Follow
    from fsdata.histories.as_of import AsOf
    from fsdata.histories.lookup import Lookup
    from fsdata.loader import FreeScaleDataLoader
    from fsdata.schema import Schema, Sequence, Split, StochasticLength
    from fsdata.setup.toml_file import sources_from_toml
    from fsdata.sources import ParquetSource, Retry, RowSource, cross, text_key
    from fsdata.tables.join import Join
    from fsdata.tensors.rebalancing import rebalance

__version__ = "0.1.0"

__all__ = [
    "AsOf",
    "Balance",
    "Batch",
    "CorruptFileError",
    "CostModel",
    "DataError",
    "EmbeddingBalance",
    "Follow",
    "FreeScaleDataLoader",
    "FreeScaleError",
    "Jagged",
    "Join",
    "Lookup",
    "MismatchError",
    "ParquetSource",
    "PeerError",
    "Plan",
    "Polynomial",
    "Power",
    "Retry",
    "RowSource",
    "Schema",
    "SchemaError",
    "Segmented",
    "Sequence",
    "Shared",
    "Split",
    "StateError",
    "StepStats",
    "StochasticLength",
    "cross",
    "expand",
    "fit",
    "global_mean",
    "pack",
    "rebalance",
    "segment_mask",
    "sources_from_toml",
    "text_key",
]

_WHERE = {
    "AsOf": "fsdata.histories.as_of",
    "Balance": "fsdata.balance.options",
    "CostModel": "fsdata.balance.cost",
    "EmbeddingBalance": "fsdata.embedding.embedding_balance",
    "Follow": "fsdata.growing.follow",
    "FreeScaleDataLoader": "fsdata.loader",
    "Jagged": "fsdata.batch.jagged",
    "Join": "fsdata.tables.join",
    "Lookup": "fsdata.histories.lookup",
    "ParquetSource": "fsdata.sources",
    "Plan": "fsdata.balance.packing",
    "Polynomial": "fsdata.balance.cost",
    "Power": "fsdata.balance.cost",
    "Retry": "fsdata.sources",
    "RowSource": "fsdata.sources",
    "Schema": "fsdata.schema",
    "Segmented": "fsdata.balance.cost",
    "Sequence": "fsdata.schema",
    "Shared": "fsdata.batch.jagged",
    "Split": "fsdata.schema",
    "StepStats": "fsdata.batch.batch",
    "StochasticLength": "fsdata.schema",
    "cross": "fsdata.sources",
    "expand": "fsdata.batch.jagged",
    "fit": "fsdata.balance.cost",
    "global_mean": "fsdata.batch.batch",
    "pack": "fsdata.balance.packing",
    "rebalance": "fsdata.tensors.rebalancing",
    "segment_mask": "fsdata.batch.jagged",
    "sources_from_toml": "fsdata.setup.toml_file",
    "text_key": "fsdata.sources",
}


def __getattr__(name: str) -> Any:
    """pyarrow and polars are imported on first use of a name that needs them."""
    if name == "Batch":  # has more methods where the views of a batch are there
        from fsdata.compose.batching import batch_type

        return batch_type()
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'fsdata' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
