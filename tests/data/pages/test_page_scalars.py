"""Fields that the page decoder gives up."""

import numpy as np
import polars as pl
import pyarrow as pa
from data_kit import assert_same, write
from random_files import batches

from fsdata import Schema, Sequence


def test_a_field_that_gave_up_goes_to_pyarrow_for_ever_longer(tmp_path):
    """After 1, 2, 4, ... chunks it is tried again. A number that would be an error is in rows that are not read."""
    lists, n = pa.array([[float(n)] * 40 if n % 2 else [np.nan] * 40 for n in range(40)]), pa.array(range(40))
    right = lists.take(pa.array([1] * 40))
    for name, costs in (("a", lists), ("b", right)):
        write(tmp_path / f"{name}.parquet", {"costs": costs, "n": n}, group=2)
    wanted = Schema(sequences=(Sequence("s", floats=("costs",)),))
    source = {"defaults": {}, "filter": pl.col("n") % 2 == 1}
    ours, decoder = batches(tmp_path, "pages", wanted, source=source, num_threads=1)
    assert_same(ours, batches(tmp_path, "pyarrow", wanted, source=source)[0])
    left = decoder["pyarrow"]["costs"]["numbers that are not finite"]
    assert decoder["chunks"] == 40 - left
    assert left == 36  # tried in vain at chunks 0, 2, 5, 10 and 19, which pauses it for 16
