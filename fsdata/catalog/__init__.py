"""Finds files, row groups and columns, from names and footers only.

A `listing` names the files. A `catalog` has the numbers of their `footers` that planning needs, and the `bounds` of
some columns, once per host (`shared_arrays`); `retry` repeats failed reads. `prune` skips files and row groups that
cannot match the filter; `binding` assigns a column to every field; `fingerprint` identifies the data at resume.
"""
