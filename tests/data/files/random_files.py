"""Files of random columns in any encoding that pyarrow writes, and what loaders make of them by either decoder."""

from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from data_kit import loader_on

from fsdata import ParquetSource, Schema, Sequence
from fsdata.errors import CorruptFileError, DataError

IDS = [
    pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8(), pa.bool_(), pa.timestamp("ms"),
    pa.timestamp("us"), pa.timestamp("ns"),
]  # fmt: skip
VALUES = [pa.float32(), pa.float64(), pa.int64(), pa.int32(), pa.int16(), pa.uint32(), pa.uint8(), pa.bool_()]
ROLES = {"user": IDS, "at": [pa.int64()], "price": VALUES, "items": IDS, "kinds": IDS, "costs": VALUES}
LISTS = ("items", "kinds", "costs")
CODECS = ["none", "zstd", "snappy", "gzip", "lz4"]
LENGTHS = ["short", "long", "equal", "one very long"]
DEFAULTS = {"user": 7, "price": -1.5, "items": 3, "kinds": 4, "costs": 0.5}


def schema(max_length: int | None = None, keep: str = "last") -> Schema:
    return Schema(
        sequences=[
            Sequence("uih", fields=("items",), floats=("costs",), max_length=max_length, keep=keep),  # type: ignore[arg-type]
            Sequence("seen", fields=("kinds",)),
        ],
        context=("user", "at"),
        dense=("price",),
    )


def numbers(rng: np.random.Generator, count: int, kind: pa.DataType) -> pa.Array:
    """Few different ones or many, ascending or not, all of one sign or at both ends."""
    if pa.types.is_floating(kind):
        found = np.round(rng.normal(size=count) * 1e6) if rng.random() < 0.5 else rng.integers(0, 9, count) / 4
        return pa.array(found.astype(np.float32), kind)
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(count) < rng.choice([0.02, 0.5]))
    width = pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date(kind) else kind
    most = np.iinfo(str(width))
    if kind == pa.uint64():
        least, stop = 0, 1 << 40
    else:
        least, stop = (int(most.min), int(most.max)) if rng.random() < 0.4 else (0, int(rng.choice([2, 100])))
    found = rng.integers(least, stop, count)
    return pa.array(np.sort(found) if rng.random() < 0.3 else found, width).cast(kind)


def columns(
    rng: np.random.Generator, rows: int, *, nulls: bool, lengths: str, holes: bool = False
) -> dict[str, pa.Array]:
    """nulls: of all columns but `at`. lengths: one of LENGTHS; those of `items` and `costs` are the same. holes: some
    elements of lists are null or not finite."""
    shapes = {
        "short": lambda: rng.integers(0, 4, rows),
        "long": lambda: rng.integers(0, 90, rows),
        "equal": lambda: np.full(rows, int(rng.integers(0, 60))),
        "one very long": lambda: np.where(np.arange(rows) == rows // 2, 5000, 0),
    }
    counts = {"uih": shapes[lengths](), "seen": shapes[lengths]()}
    made = {}
    for name, kinds in ROLES.items():
        kind, mask = kinds[rng.integers(len(kinds))], None
        if nulls and name != "at" and rng.random() < 0.7:
            mask = rng.random(rows) < rng.choice([0.05, 0.6])
        if name in LISTS:
            offsets = np.concatenate([[0], np.cumsum(counts["seen" if name == "kinds" else "uih"])])
            elements = numbers(rng, int(offsets[-1]), kind)
            null, nullable = None if mask is None else pa.array(mask), bool(rng.random() < 0.7)
            if holes and rng.random() < 0.7:
                elements, nullable = with_holes(rng, elements), True
            of = pa.list_(pa.field("element", kind, nullable))
            made[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=of, mask=null)
        else:
            array = numbers(rng, rows, kind)
            made[name] = pa.array(array.to_numpy(zero_copy_only=False), kind, mask=mask)
    return made


def with_holes(rng: np.random.Generator, elements: pa.Array) -> pa.Array:
    """With some that are null or, of floats, not finite: few or many, and the first and the last."""
    share = rng.choice([0.01, 0.5])
    null, other = rng.random(len(elements)) < share, rng.random(len(elements)) < share
    null[:1] = null[-1:] = True
    if pa.types.is_floating(elements.type):
        other[-2:] = True
        numbers = elements.to_numpy(zero_copy_only=False).copy()
        numbers[other] = rng.choice([np.nan, np.inf, -np.inf], int(other.sum()))
        return pa.array(numbers, elements.type, mask=null if rng.random() < 0.5 else None, from_pandas=False)
    return pc.if_else(pa.array(null), pa.scalar(None, elements.type), elements)


def write(where: Path | IO[bytes], made: dict[str, pa.Array], rng: np.random.Generator, **options: Any) -> None:
    """By pyarrow, every column in an encoding that its type allows; options: of `pq.write_table`, in place of drawn
    ones."""
    encodings = {}
    for name, array in made.items():
        kind = array.type.value_type if name in LISTS else array.type
        possible = ["PLAIN"]
        if pa.types.is_boolean(kind):
            possible.append("RLE")
        else:
            possible += ["", "BYTE_STREAM_SPLIT"] if pa.types.is_floating(kind) else ["", "DELTA_BINARY_PACKED"]
        encodings[f"{name}.list.element" if name in LISTS else name] = str(rng.choice(possible))
    fields = [pa.field(name, array.type, array.null_count > 0 or rng.random() < 0.5) for name, array in made.items()]
    table = pa.table(list(made.values()), schema=pa.schema(fields))
    drawn = {
        "row_group_size": int(rng.choice([1, 37, 1000])) if table.num_rows < 100 else 150,
        "compression": str(rng.choice(CODECS)),
        "data_page_version": str(rng.choice(["1.0", "2.0"])),
        "data_page_size": int(rng.choice([16, 300, 1 << 20])),
        "dictionary_pagesize_limit": int(rng.choice([64, 1 << 20])),
        "write_batch_size": int(rng.choice([3, 64, 1024])),
        "write_page_checksum": bool(rng.random() < 0.5),
        "use_dictionary": [name for name, encoding in encodings.items() if not encoding],
        "column_encoding": {name: encoding for name, encoding in encodings.items() if encoding},
    }
    pq.write_table(table, where, **drawn | options)


def batches(path: Path, decoder: str | None, wanted: Schema | None = None, **options: Any) -> tuple[Any, Any]:
    """All batches, or what the error says; and what the loader says of its decoder.

    source: options of the source; others are of the loader.
    """
    given = ParquetSource(path, decoder=decoder, **{"defaults": DEFAULTS} | options.pop("source", {}))  # type: ignore[arg-type]
    with loader_on(given, wanted or schema(), **{"batch_size": 32, "num_threads": None} | options) as loader:
        try:
            found: Any = list(loader)
        except DataError as error:
            found = str(error)
        except CorruptFileError as error:
            found = error
        return found, loader.describe()[0]["decoder"]
