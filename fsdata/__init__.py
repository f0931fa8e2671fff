"""fsdata: Parquet sources -> jagged samples -> batches of equal cost on all ranks (the FreeScale DataLoader).

The way of a row: `sources` and `schema` say what users want; `catalog` finds files and columns; `order` says which row
comes when; `decode` reads rows; `balance` moves them between ranks (`embedding_balance`: behind the embeddings);
`steps` make a `batch` of them, which the `loader` hands out. `kernels` copy; `errors` are the errors of all of it.
"""

from fsdata.balance.cost import CostModel, Polynomial, Power, fit
from fsdata.balance.options import Balance
from fsdata.balance.packing import Plan, pack
from fsdata.balance.rebalance.rebalance import rebalance
from fsdata.batch.batch import Batch, StepStats
from fsdata.batch.jagged import Jagged
from fsdata.batch.loss import global_mean
from fsdata.errors import CorruptFileError, DataError, FreeScaleError, MismatchError, PeerError, SchemaError, StateError
from fsdata.loader import FreeScaleDataLoader
from fsdata.schema import Schema, Sequence
from fsdata.sources import Join, ParquetSource, sources_from_toml

__version__ = "0.1.0"

__all__ = [
    "Balance",
    "Batch",
    "CorruptFileError",
    "CostModel",
    "DataError",
    "FreeScaleDataLoader",
    "FreeScaleError",
    "Jagged",
    "Join",
    "MismatchError",
    "ParquetSource",
    "PeerError",
    "Plan",
    "Polynomial",
    "Power",
    "Schema",
    "SchemaError",
    "Sequence",
    "StateError",
    "StepStats",
    "fit",
    "global_mean",
    "pack",
    "rebalance",
    "sources_from_toml",
]
