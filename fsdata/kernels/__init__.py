"""Kernels: loops over raw arrays, without knowledge of the layers above.

`footer` reads the chunks of a Parquet footer by `thrift`. `columns` finds the values of rows in `runs` and copies them
into a batch; `scalars` does so for fields with one value per row; `memory` reads at addresses. `texts` hashes texts;
`ranges` moves jagged rows of tensors (CUDA: `ranges_triton`); `deal` assigns spans of rows to ranks. `warm` compiles
these kernels and those of extensions beforehand.
"""


def load_numba() -> None:
    """Import the rest of numba: 0.1 s that the first kernel call, and so the first batch, would otherwise take."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
