"""Files that are not local.

Row groups are read whole before they are decoded: `byte_ranges` plans which bytes are read by which request, a
`row_group` is read by any threads and is then a file in memory. `read_ahead` reads row groups in the order in which
they will be decoded, in threads of its own, up to a number of bytes. What a `remote_file` answers is looked at: whether
all bytes came.
"""
