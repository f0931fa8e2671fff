"""Numbers of columns that rows refer to: given back, and done without where there are none left."""

import gc
from collections import deque

import numpy as np
import pyarrow as pa
from parquet import lists, opened, values, write

from fsdata import ParquetSource, Schema, Sequence
from fsdata.decode.pages import held
from fsdata.kernels.pages import fetch

SCHEMA = Schema(sequences=[Sequence("uih", fields=("item", "action"))])
LONG = [list(range(40 + n)) for n in range(30)]


def sample(path):
    return write(path, {"item": lists(pa.int64(), *LONG), "action": lists(pa.int32(), *LONG)}, group=30)


def test_columns_are_given_back_with_the_rows(tmp_path):
    source, layout = opened(ParquetSource(sample(tmp_path / "a.parquet")), SCHEMA)
    gc.collect()
    free = len(held._free)
    rows = source.read(source.groups[0], layout, 0, 30)
    assert len(held._free) == free - 2
    some = rows.table.take(np.array([3, 29]))
    del rows
    assert len(held._free) == free - 2
    assert [each["item"] for each in values(some, layout)] == [LONG[3], LONG[29]]
    del some
    gc.collect()
    assert len(held._free) == free
    source.close()


def test_without_a_number_values_are_decoded_at_once(tmp_path, monkeypatch):
    source, layout = opened(ParquetSource(sample(tmp_path / "a.parquet")), SCHEMA)
    last = held._free[-1]
    monkeypatch.setattr(held, "_free", deque([last]))
    rows = source.read(source.groups[0], layout, 0, 30)
    paged = [int(address) >> fetch.PAGED_SHIFT == fetch.PAGED for address in rows.table.address[:, 0]]
    assert sorted(paged) == [False, True]
    assert [each["action"] for each in values(rows.table, layout)] == LONG
    source.close()


def test_what_truncation_cuts_off_is_not_there(tmp_path):
    schema = Schema(sequences=[Sequence("uih", fields=("item", "action"), max_length=7, keep="last")])
    source, layout = opened(ParquetSource(sample(tmp_path / "a.parquet")), schema)
    rows = source.read(source.groups[0], layout, 5, 30)
    found = values(rows.table, layout)
    assert [each["item"] for each in found] == [each[-7:] for each in LONG[5:]]
    assert [each["action"] for each in found] == [each[-7:] for each in LONG[5:]]
    source.close()
