"""Where samples come from: Parquet files and how they become the fields of a schema.

A `source` is what the user says of them, in Python or in a `toml_file`, with `expressions` over columns.
"""

from fsdata.sources.source import AsOf, Join, ParquetSource, Retry
from fsdata.sources.toml_file import sources_from_toml

__all__ = ["AsOf", "Join", "ParquetSource", "Retry", "sources_from_toml"]
