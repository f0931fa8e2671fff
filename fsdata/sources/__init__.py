"""Where samples come from: Parquet files and how they become the fields of a schema."""

from fsdata.sources.source import Join, ParquetSource
from fsdata.sources.toml_file import sources_from_toml

__all__ = ["Join", "ParquetSource", "sources_from_toml"]
