"""Where samples come from: Parquet files and how they become the fields of a schema.

A `source` is what the user says of them, in Python or in a `toml_file`, with `expressions` over columns; `follow` says
how they grow.
"""

from fsdata.sources.follow import Follow
from fsdata.sources.source import AsOf, Join, ParquetSource, Retry
from fsdata.sources.toml_file import sources_from_toml

__all__ = ["AsOf", "Follow", "Join", "ParquetSource", "Retry", "sources_from_toml"]
