"""The user's description of data: Parquet files and how they become the fields of a schema.

A `source` has the options of one set of files; the extensions describe the tables that are joined to it. `expressions`
over columns are checked, and evaluated batch by batch; `elementwise` lists the allowed polars functions. `hash_split`
selects a part of the rows by the hash of a column.
"""

from fsdata.sources.expressions import cross, text_key
from fsdata.sources.source import ParquetSource, Retry, RowSource

__all__ = ["ParquetSource", "Retry", "RowSource", "cross", "text_key"]
