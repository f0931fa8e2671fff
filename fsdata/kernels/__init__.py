"""Kernels: loops over raw arrays, independent of the layers above.

`footer` reads the chunks of a Parquet footer by `thrift`. `columns` locates the values of rows in `runs` and copies
them into a batch; `scalars` does so for fields with a fixed number of values per row; `memory` reads at addresses.
`texts` hashes texts; `ranges` copies jagged rows of tensors (CUDA: `ranges_triton`); `deal` assigns spans of rows to
ranks. `warm` compiles these kernels and those of extensions before they are called.
"""


def load_numba() -> None:
    """Import the parts of numba that it loads lazily: 0.1 s that the first batch would otherwise take longer."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
