"""Which files, row groups and columns there are, from names and footers alone.

A `listing` names the files, and `prune` leaves some out unopened; a `catalog` holds what planning needs of their
`footers` (`retry`, `cores`: how often and how many are read at once), once per host (`shared_arrays`) or once and for
all (`catalog_file`); `roles` says what the loader wants; `bind` gives every field its column; `fingerprint` identifies
it all at resume.
"""
