"""Event logs in files, the command run on them, and the table that plain Python makes of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tools_kit import write

from freescale_tools.console.terminal import Terminal
from freescale_tools.scan.files import open_files
from freescale_tools.write.histories.build import make_table

SCHEMA = pa.schema(
    [("item", pa.int32()), ("user", pa.int64()), ("ts", pa.int64()), ("price", pa.float32()), ("word", pa.string())]
)
FIELDS = ["item", "price", "word"]
_M = 0x9E3779B97F4A7C15
_WRAP = 2**64


def write_events(path, rows, schema=SCHEMA, **options):
    """A file of `rows`, tuples in the order of the schema."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return write(path, pa.Table.from_arrays(arrays, schema=schema), **options)


def write_log(folder, files, schema=SCHEMA):
    """One file per list of rows, in row groups of 3 rows; returns their names."""
    return [
        str(write_events(folder / f"events-{n:02d}.parquet", rows, schema, group=3)) for n, rows in enumerate(files)
    ]


def build(paths, out, **settings):
    chosen = {"by": "user", "time": "ts", "fields": None, "buckets": None, "update": False} | settings
    files = open_files([str(path) for path in paths])
    return make_table(files, Path(out), **chosen, terminal=Terminal())


def tables(out):
    """The files of a table in order of their names."""
    return [pq.read_table(path) for path in sorted(Path(out).iterdir())]


def bucket_of(key, buckets):
    """As the documentation says, with Python's integers."""
    h = key % _WRAP * _M % _WRAP
    h = (h ^ h >> 32) * _M % _WRAP
    return (h >> 32) % buckets


def reference(files, buckets=1):
    """Rows of every file of the table."""
    histories = {}
    for rows in files:
        for row in rows:
            event = dict(zip(SCHEMA.names, row, strict=True))
            histories.setdefault(event["user"], []).append(event)
    found = [[] for _ in range(buckets)]
    for user in sorted(histories):
        events = sorted(histories[user], key=lambda event: event["ts"])  # stable
        lists = {name: [event[name] for event in events] for name in ["ts", *FIELDS]}
        found[bucket_of(user, buckets)].append({"user": user, **lists})
    return found


_KEYS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
_ROWS = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    _KEYS,
    st.integers(0, 4) | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(width=32, allow_nan=False),
    st.none() | st.text("ab", max_size=3),
)
LOGS = st.lists(st.lists(_ROWS, max_size=12), min_size=1, max_size=4)
"""Rows of one to four files, with many ties, few keys and some far apart, empty files, and null values."""
