"""Where samples come from: Parquet files and how they become the fields of a schema.

A `source` is what the user says of them, in Python or in a `toml_file`, and `joins` are tables that bring more fields.
`expressions` over columns are checked, and evaluated batch by batch; `elementwise` says which polars functions are
allowed. `hash_split` takes a part of the rows by the hash of a column, and `follow` says how files grow.
"""

from fsdata.sources.expressions import cross, text_key
from fsdata.sources.follow import Follow
from fsdata.sources.joins import AsOf, Join, Lookup
from fsdata.sources.source import ParquetSource, Retry
from fsdata.sources.toml_file import sources_from_toml

__all__ = ["AsOf", "Follow", "Join", "Lookup", "ParquetSource", "Retry", "cross", "sources_from_toml", "text_key"]
