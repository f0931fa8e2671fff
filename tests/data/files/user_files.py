"""Files of one column, `user`, for tests in which only the way to a file matters."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from parquet import read, write

from fsdata import Schema
from fsdata.sources import ParquetSource

USERS = Schema(context=("user",))


def users(folder: Path, name: str, *numbers: int, **options: Any) -> Path:
    return write(folder / name, {"user": pa.array(numbers, pa.int64())}, **options)


def found(*args: Any, **kwargs: Any) -> list[int]:
    """The users in a source of these arguments."""
    return [sample["user"][0] for sample in read(ParquetSource(*args, **kwargs), USERS)]
