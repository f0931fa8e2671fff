"""Writes any number of synthetic sources: histories, candidates with labels, context, dense features.

The file `schema.toml` beside them describes sources and fields; `freescale check`, `Schema.from_toml` and
`sources_from_toml` read it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from freescale_tools.console.files import write_whole
from freescale_tools.write.synth.histories import Columns, candidate_columns, history_columns
from freescale_tools.write.synth.lengths import Draws
from freescale_tools.write.synth.table_files import Advance, write_table

_SCHEMA = """[schema]
context = ["user_id", "country"]
dense = ["age_days"]
labels = ["candidate_labels"]
time = "request_ts"

[[schema.sequences]]
name = "uih"
fields = ["item_ids", "actions", "timestamps"]

[schema.candidates]
fields = ["candidate_ids"]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcesSet:
    """The shape of the sources.

    Attributes:
        sources: folders `source-0`, `source-1`, ... of `files` files of `rows` rows each.
        row_group_rows: rows of a row group.
        lengths: of the histories.
    """

    lengths: Draws
    sources: int = 1
    files: int = 4
    rows: int = 4_000
    row_group_rows: int = 512

    def __post_init__(self) -> None:
        for name in ("sources", "files", "rows", "row_group_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def write_sources(folder: Path, wanted: SourcesSet, *, seed: int, advance: Advance) -> list[Path]:
    """Write the set, but keep finished files. The schema file is the last path of the result."""

    def rows(rng: np.random.Generator, first: int, count: int) -> Columns:
        return _rows(rng, first, count, wanted.lengths)

    paths: list[Path] = []
    for source in range(wanted.sources):
        paths += write_table(
            folder / f"source-{source}",
            f"source-{source}",
            rows,
            wanted.files,
            wanted.rows,
            row_group_rows=wanted.row_group_rows,
            seed=seed,
            lengths=repr(wanted.lengths),
            advance=advance,
        )
    sources = "".join(f'\n[[sources]]\npaths = "source-{source}"\n' for source in range(wanted.sources))
    schema = folder / "schema.toml"
    write_whole(schema, _SCHEMA + sources)
    return [*paths, schema]


def _rows(rng: np.random.Generator, first: int, rows: int, lengths: Draws) -> Columns:
    past, request = history_columns(rng, first, rows, step_s=60, lengths=lengths)
    return {
        "user_id": pa.array(rng.integers(1, 1_000_000, rows)),
        **past,
        **candidate_columns(rng, rows),
        "country": pa.array(rng.integers(1, 60, rows)),
        "age_days": pa.array(rng.gamma(2.0, 200.0, rows).astype(np.float32)),
        "request_ts": pa.array(request),
    }
