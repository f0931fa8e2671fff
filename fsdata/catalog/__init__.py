"""Which files, row groups and columns there are, from names and footers alone.

`find_files` (by `walk`) lists files, as a `file_list`; a `catalog` holds what planning needs of their `footers`
(`retry`, `cores`: how often and how many are read at once); `roles` says what the loader wants; `bind` gives every
field its column; `fingerprint` identifies it all at resume.
"""
