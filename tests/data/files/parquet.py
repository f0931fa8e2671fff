"""Hand-made Parquet files, and what decoded rows hold as plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsdata.decode.block import RowRefs
from fsdata.decode.opened_source import OpenSource
from fsdata.decode.row_layout import Layout, layout_of
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


def values(rows: RowRefs, layout: Layout) -> list[dict[str, Any]]:
    """Sample by sample: field -> list of numbers."""
    spans = rows.spans()
    buffers = [
        np.zeros(int(count) * field.itemsize, np.uint8)
        for count, field in zip(spans.counts, layout.fields, strict=True)
    ]
    spans.gather(layout.itemsize, np.array([buffer.ctypes.data for buffer in buffers]))
    result: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    for field, buffer, length in zip(layout.fields, buffers, spans.length, strict=True):
        ends = np.cumsum(length) * field.itemsize
        for sample, raw in zip(result, np.split(buffer, ends[:-1]), strict=bool(len(result))):
            sample[field.name] = (
                raw.tobytes().decode() if field.kind == "text" else np.frombuffer(raw.tobytes(), field.dtype).tolist()
            )
    return result


def opened(source: ParquetSource, schema: Schema, **options: Any) -> tuple[OpenSource, Layout]:
    handle = OpenSource(source, schema, index=options.pop("index", 0), **options)
    return handle, layout_of(schema, handle.list_labels, texts=handle.texts)


def read_all(source: OpenSource, layout: Layout) -> list[dict[str, Any]]:
    """Every surviving sample of a source, in order."""
    samples = []
    for group in source.groups:
        samples += values(source.read(group, layout, 0, group.rows).rows, layout)
    return samples


def read(source: ParquetSource, schema: Schema) -> list[dict[str, Any]]:
    handle, layout = opened(source, schema)
    samples = read_all(handle, layout)
    handle.close()
    return samples


def column(samples: list[dict[str, Any]], name: str) -> list[Any]:
    return [sample[name] for sample in samples]
