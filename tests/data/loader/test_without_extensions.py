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


def read_without_extensions(folder: Path) -> Any:
    """What a new process reads that finds nothing of the extensions."""
    gone = {f"fsdata.{each}": None for each in EXTENSIONS}
    code = f"import json, sys\nsys.modules.update({gone})\n{READ}\nprint(json.dumps(read(sys.argv[1])))"
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
    assert read_without_extensions(tmp_path) == expected
