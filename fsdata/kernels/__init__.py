"""Kernels: loops over raw arrays, no knowledge of anything above them.

`footer` reads what a footer says of its chunks; `index` turns Arrow arrays into addresses; `copy` copies samples;
`ranges` (and `ranges_triton`) copy ranges of tensors, `jagged_ops` moves jagged rows by them.

Numba imports most of itself at the first call of any kernel, a tenth of a second in the middle of the first batch.
These two calls are that import, done where imports belong.
"""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
