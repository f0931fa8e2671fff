"""Open files, and the bytes of their row groups.

`row_groups` says which of them are read; `open_files` keeps files open. Row groups of remote files are read whole
before they are decoded: `byte_ranges` plans which bytes are read by which request, a `row_group` is read by any threads
and is then a file in memory. `read_ahead` reads row groups in the order in which they will be decoded, in threads of
its own, up to a number of bytes.
"""
