"""Where samples come from: Parquet files and how they become the fields of a schema.

A `source` is what the user says of them; tables that are joined to it are described by the extensions that join them.
`expressions` over columns are checked, and evaluated batch by batch; `elementwise` says which polars functions are
allowed. `hash_split` takes a part of the rows by the hash of a column.
"""

from fsdata.sources.expressions import cross, text_key
from fsdata.sources.source import ParquetSource, Retry, RowSource

__all__ = ["ParquetSource", "Retry", "RowSource", "cross", "text_key"]
