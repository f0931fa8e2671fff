"""Kernels: loops over raw arrays, no knowledge of anything above them.

`pages` reads the pages of Parquet files, `thrift` their headers, `footer` what a footer says of its chunks; `columns`
finds the values of rows and copies them to where those of a batch go, with `lookups` in dimension tables; `scalars`
does so for fields with one value per row; `memory` reads at addresses. `histories` finds what had happened by a time,
and merges kinds of events; `ranges` (and `ranges_triton`) copy ranges of tensors, or add them up; `jagged_ops` moves
jagged rows by them. `packing` deals samples, and spans of rows, to ranks.
"""


def load_numba() -> None:
    """Import the rest of numba: a tenth of a second that its first kernel call would take, in the first batch."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
