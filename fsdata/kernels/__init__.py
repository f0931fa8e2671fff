"""Kernels: loops over raw arrays, no knowledge of anything above them.

`footer` reads what a footer says of its chunks, as `thrift`; `columns` finds the values of rows in `runs` and copies
them to their place in a batch; `scalars` does so for fields with one value per row; `memory` reads at addresses.
`texts` hashes texts; `ranges` moves jagged rows of tensors (CUDA: `ranges_triton`). `packing` deals samples and spans
of rows to ranks. `warm` compiles all of them beforehand, and those of extensions.
"""


def load_numba() -> None:
    """Import the rest of numba: a tenth of a second that its first kernel call would take, in the first batch."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
