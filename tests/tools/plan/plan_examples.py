"""Tables, hardware and a profile that the tests of planning share."""

import dataclasses
import json

import numpy as np
from tools_kit import profile_of, ragged, write

from freescale_tools.model.hardware import load_hardware
from freescale_tools.plan.costs import Placed, Setting, Shard
from freescale_tools.plan.tables import Table

# 1 GB/s to other ranks of the host, so that 1e6 bytes take a millisecond; memory at 2 GB/s; nothing else costs time.
IDEAL = dataclasses.replace(
    load_hardware("h100-ib"), nvlink=1.0, memory=2.0, exchange_efficiency=1.0, allreduce_efficiency=1.0,
    exchange_latency=0.0, peer_latency=0.0, id_metadata=0.0, kernel_floor=0.0,
)  # fmt: skip


def table(name="t", *, rows=1000, dim=8, pooled=False, ids=(10.0,), **more):
    features = tuple(f"{name}_{place}" for place in range(len(ids)))
    kind = "pooled" if pooled else "sequence"
    return Table(name=name, rows=rows, dim=dim, features=features, kind=kind, ids_per_sample=ids, **more)


def setting(**more):
    return Setting(**{"hardware": IDEAL, "ranks": 4, "batch_size": 100} | more)


def row_wise(of, ranks=4):
    ends = [min(rank * -(-of.rows // ranks), of.rows) for rank in range(ranks + 1)]
    shards = [Shard(rank, ends[rank], ends[rank + 1] - ends[rank], of.dim) for rank in range(ranks)]
    return Placed(table=of, sharding="row_wise", shards=tuple(shards))


def whole(of, rank=0):
    return Placed(table=of, sharding="table_wise", shards=(Shard(rank, 0, of.rows, of.dim),))


def columns(of, *ranks):
    shards = tuple(Shard(rank, 0, of.rows, of.dim // len(ranks)) for rank in ranks)
    return Placed(table=of, sharding="column_wise", shards=shards)


def everywhere(of, ranks=4):
    shards = [Shard(rank, 0, of.rows, of.dim) for rank in range(ranks)]
    return Placed(table=of, sharding="data_parallel", shards=tuple(shards))


def write_profile(folder, *, columns=("items",), rows=20_000, highest=1000, batch_size=16):
    """A profile of a Parquet file with list columns of ids below `highest`, small ones more often; and the file."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, rows)
    ids = (highest * rng.random((len(columns), lengths.sum())) ** 2).astype(np.int64)
    lists = {name: ragged(lengths, of) for name, of in zip(columns, ids, strict=True)}
    write(folder / "data.parquet", lists, group=4096)
    grid = {"default": {"batch_size": batch_size, "max_length": 8, "cost": "Polynomial()"}, "points": []}
    of_name = {name: profile_of(lengths, name=name)["sequences"][name] for name in columns}
    document = profile_of(lengths, paths=[str(folder / "data.parquet")], sequences=of_name, stragglers=grid)
    (folder / "profile.json").write_text(json.dumps(document))
    return ids
