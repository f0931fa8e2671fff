"""Parquet pages, without pyarrow.

`headers` finds the pages of a column chunk; `locations` says where they begin, and with which row; `levels` says how
long the lists of its rows are; `indices` says where positions in a dictionary lie in the pages; `deltas` decodes what
cannot stay as it is stored; `rows` does all that for one page after another. What they find is a column for
`fsdata.kernels.columns`.

All of them read bytes that nobody has checked, and check every number before they use it. The result of a kernel is
then a code:
"""

OK = 0
DAMAGED = 1  # the pages contradict themselves or the footer
UNKNOWN = 2  # a form that is left to pyarrow
