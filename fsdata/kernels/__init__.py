"""Kernels: loops over raw arrays, no knowledge of anything above them.

`pages` reads the pages of Parquet files, `footer` what a footer says of its chunks; `columns` finds the values of rows
and copies them to their place in a batch, with `lookups` in dimension tables; `scalars` does so for fields with one
value per row; `memory` reads at addresses. `histories` finds what had happened by a time, and merges kinds of events;
`texts` hashes texts; `jagged` moves jagged rows of tensors. `packing` deals samples and spans of rows to ranks. `warm`
compiles all of them beforehand.
"""


def load_numba() -> None:
    """Import the rest of numba: a tenth of a second that its first kernel call would take, in the first batch."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
