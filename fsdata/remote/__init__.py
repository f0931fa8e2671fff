"""Row groups of files that are not local.

They are read whole before they are decoded: `byte_ranges` plans by which requests, a `row_group` is
read by any threads and is then a file in memory. `read_ahead` reads row groups in the order in which they will be
decoded, in threads of its own, up to a number of bytes.
"""
