"""Where samples come from: Parquet files and how they become the fields of a schema."""

from fsdata.sources.source import Join, ParquetSource

__all__ = ["Join", "ParquetSource"]
