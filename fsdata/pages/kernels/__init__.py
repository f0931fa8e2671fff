"""Parquet pages, without pyarrow.

`headers` finds the pages of a column chunk; `locations` reads their offset index; `levels` computes the lengths of
lists; `indices` finds the bit-packed dictionary indices in pages; `deltas` decodes encodings whose values cannot be
read in any order; `rows` does all that for one page after another. The result is a column for `fsdata.kernels.columns`.

The bytes of a file are not trusted: every number is checked before it is used. The result of a kernel is then a code:
"""

OK = 0
DAMAGED = 1  # the pages contradict themselves or the footer
UNKNOWN = 2  # left to pyarrow
