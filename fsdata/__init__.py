"""fsdata: Parquet sources -> jagged samples -> batches of equal cost on all ranks (the FreeScale DataLoader)."""

from fsdata.balance import Balance
from fsdata.batch import Batch, StepStats
from fsdata.cost import CostModel, Polynomial, Power, fit
from fsdata.errors import (
    CorruptFileError,
    DataError,
    FreeScaleError,
    MismatchError,
    PeerError,
    SchemaError,
    StateError,
)
from fsdata.jagged import Jagged
from fsdata.loader import FreeScaleDataLoader
from fsdata.loss import global_mean
from fsdata.packing import Plan, pack
from fsdata.rebalance import rebalance
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
