"""Parquet pages, without pyarrow.

`headers` locates the pages of a column chunk; `locations` reads their offset index; `levels` computes the lengths of
lists; `indices` locates the bit-packed dictionary indices in pages; `deltas` decodes encodings without random access;
`rows` calls these for one page after another. The result is a column for `fsdata.kernels.columns`.

The bytes of a file are not trusted: every number is checked before it is used. The result of a kernel is then a code:
"""

OK = 0
DAMAGED = 1  # the pages contradict themselves or the footer
UNKNOWN = 2  # a form that only pyarrow reads
