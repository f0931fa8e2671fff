"""Hand-made Parquet files, and what a decoded table holds as plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.decode.opened_source import OpenSource
from fsdata.decode.row_layout import Layout, layout_of
from fsdata.decode.row_table import RowTable, SurvivingRows
from fsdata.kernels.copy import gather_fields
from fsdata.schema import Schema
from fsdata.sources import ParquetSource


def write(path: Path, columns: dict[str, Any] | pa.Table, *, group: int | None = None, **options: Any) -> Path:
    """A file of `columns` (arrays or Python lists) in row groups of `group` rows, pages with checksums."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    rows = group or max(table.num_rows, 1)
    pq.write_table(table, path, row_group_size=rows, write_page_checksum=True, **options)
    return path


def lists(kind: pa.DataType, *rows: Any) -> pa.Array:
    return pa.array(list(rows), pa.list_(kind))


def values(table: RowTable, layout: Layout) -> list[dict[str, Any]]:
    """Sample by sample: field -> list of numbers."""
    result = []
    for n in range(table.num_rows):
        sample = {}
        for f, field in enumerate(layout.fields):
            count = int(table.length[f, n])
            raw = np.zeros(count * field.itemsize, np.uint8)
            place, target = np.ascontiguousarray(table.address[f : f + 1, n : n + 1]), np.array([raw.ctypes.data])
            gather_fields(place, np.array([[count]]), np.array([field.itemsize]), target)
            sample[field.name] = (
                raw.tobytes().decode() if field.kind == "text" else np.frombuffer(raw, field.dtype).tolist()
            )
        result.append(sample)
    return result


def opened(source: ParquetSource, schema: Schema, **options: Any) -> tuple[OpenSource, Layout]:
    handle = OpenSource(source, schema, index=options.pop("index", 0), **options)
    return handle, layout_of(schema, handle.list_labels, texts=handle.texts)


def read_all(source: OpenSource, layout: Layout) -> list[dict[str, Any]]:
    """Every surviving sample of a source, in order."""
    samples = []
    for group in source.groups:
        rows: SurvivingRows = source.read(group, layout, 0, group.rows)
        samples += values(rows.table, layout)
    return samples


def read(source: ParquetSource, schema: Schema) -> list[dict[str, Any]]:
    handle, layout = opened(source, schema)
    samples = read_all(handle, layout)
    handle.close()
    return samples


def column(samples: list[dict[str, Any]], name: str) -> list[Any]:
    return [sample[name] for sample in samples]
