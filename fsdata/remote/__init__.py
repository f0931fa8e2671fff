"""Row groups of remote files.

All needed bytes of a row group are read before it is decoded: `byte_ranges` plans the requests, and `row_group` reads
them, in any threads, into a file in memory. `read_ahead` does so in I/O threads, in the order of decoding, up to a
bound in bytes.
"""
