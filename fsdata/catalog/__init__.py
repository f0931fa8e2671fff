"""Which files, row groups and columns there are, from names and footers alone.

`find_files` (by `walk`) lists files; `footers` reads them (`retry`, `cores`: how often and how many at once); `roles`
says what the loader wants; `bind` gives every field its column; `fingerprint` identifies it all at resume.
"""
