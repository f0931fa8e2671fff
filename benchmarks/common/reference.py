"""The sets that loaders are compared on: histories (the reference set), and flat rows."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freescale_tools.write.synth.presets import ReferenceColumns, reference_set
from fsdata import Schema, Sequence

COLUMNS = {
    "reference": ReferenceColumns(),
    "flat": ReferenceColumns(
        sequence=(),
        candidates=(),
        label="label",
        context=tuple(f"i{n}" for n in range(26)),
        dense=tuple(f"f{n}" for n in range(13)),
        time="",
    ),
}
"""Set -> the columns that are read of it: 16 keys, 10 dense, a list of labels; 26 keys, 13 dense, a label."""
_FLAT_FILES, _FLAT_NAMES, _FLAT_GROUPS, _FLAT_ROWS = 4, 8, 8, 6144


def reference_schema(columns: ReferenceColumns = COLUMNS["reference"]) -> Schema:
    return Schema(
        sequences=(Sequence("uih", fields=columns.sequence),) if columns.sequence else (),
        candidates=Sequence("candidates", fields=columns.candidates) if columns.candidates else None,
        context=columns.context,
        dense=columns.dense,
        labels=(columns.label,),
    )


def flat_table(rows: int, ids: int, floats: int = 0, unused: int = 0) -> pa.Table:
    """One number per row: ids, floats, a label, and columns of ids that are not read."""
    rng = np.random.default_rng(0)
    columns = {f"i{n}": rng.integers(0, 10**6, rows) for n in range(ids)}
    columns |= {f"f{n}": rng.random(rows, np.float32) for n in range(floats)}
    columns |= {"label": rng.integers(0, 2, rows).astype(np.float32)}
    columns |= {f"u{n}": rng.integers(0, 10**6, rows) for n in range(unused)}
    return pa.table(columns)


def written(name: str, folder: Path) -> list[Path]:
    """The files of a set, written unless they are there."""
    return reference_set(folder) if name == "reference" else list(_flat_set(folder))


def _flat_set(folder: Path) -> Iterator[Path]:
    """The shape of the DLRM of MLPerf Storage: 40 of 200 columns, short row groups. Every file has several names: an
    epoch that takes a second needs a GB of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(_FLAT_FILES):
        names = [folder / f"flat-{number}-{name}.parquet" for name in range(_FLAT_NAMES)]
        if not names[0].exists():
            table = flat_table(_FLAT_GROUPS * _FLAT_ROWS, 26, 13, 160)
            beside = names[0].with_suffix(".part")
            pq.write_table(table, beside, row_group_size=_FLAT_ROWS, compression="zstd")
            beside.rename(names[0])
        for name in names:
            if not name.exists():
                name.hardlink_to(names[0])
        yield from names
