"""Without any extension, the core reads what it read before. `make test-without` deletes them one by one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from data_kit import write
from without import EXTENSIONS

READ = """
from fsdata import FreeScaleDataLoader, ParquetSource, Schema, Sequence

schema = Schema(context=("user",), sequences=(Sequence("uih", fields=("item",), max_length=5),), labels=("y",))


def loader(folder, given, **options):
    source = ParquetSource(folder, **given)
    return FreeScaleDataLoader(source, schema, batch_size=8, rank=0, world_size=1, num_threads=1, **options)


def taken(batch):
    return [batch.features.lengths().tolist(), batch.features.values().tolist(), batch.labels["y"].tolist()]


def read(folder):
    found = []
    for given, options in (({}, {}), ({}, {"shuffle": True, "drop_last": True}), ({"limit": 70, "skip": 3}, {})):
        with loader(folder, given, **options) as first:
            batches = iter(first)
            found += [taken(next(batches)) for _ in range(3)]
            state = first.state_dict()
        with loader(folder, given, **options) as resumed:
            resumed.load_state_dict(state)
            found += map(taken, resumed)
    return found
"""

JOINED = """
from fsdata import FreeScaleDataLoader, Join, ParquetSource, Schema


def read(folder):
    users = ParquetSource(f"{folder}/users.parquet", defaults={"age": -1})
    source = ParquetSource(f"{folder}/rows.parquet", join=Join(users, on="user", fields=("age",)))
    schema = Schema(context=("user", "age"))
    with FreeScaleDataLoader(source, schema, batch_size=4, rank=0, world_size=1, num_threads=1) as loader:
        return [batch.features["age"].values().tolist() for batch in loader]
"""


def read_without(extensions: tuple[str, ...], folder: Path, script: str = READ) -> Any:
    """What a new process reads that finds nothing of these extensions."""
    gone = {f"fsdata.{each}": None for each in extensions}
    code = f"import json, sys\nsys.modules.update({gone})\n{script}\nprint(json.dumps(read(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_rest_reads_what_it_read_before(tmp_path: Path) -> None:
    rows = 100
    for number in range(3):
        lists = [list(range(number, number + row % 9)) for row in range(rows)]
        columns = {"user": range(rows), "item": lists, "y": [float(row) for row in range(rows)]}
        write(tmp_path / f"{number}.parquet", columns, group=20)
    whole: dict[str, Any] = {}
    exec(READ, whole)
    expected = whole["read"](str(tmp_path))
    assert len(expected) == 38 + 37 + 9
    assert read_without(EXTENSIONS, tmp_path) == expected


def test_side_tables_need_no_other_extension(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", {"user": [3, 1, 9, 2]})
    write(tmp_path / "users.parquet", {"user": [2, 1, 3], "age": [20, 10, 30]})
    others = tuple(each for each in EXTENSIONS if each != "tables")
    assert read_without(others, tmp_path, JOINED) == [[30, 10, -1, 20]]
