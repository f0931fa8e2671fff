"""Which files, row groups and columns there are, from names and footers alone.

A `listing` names the files; a `catalog` holds what planning needs of their `footers` (`retry`: how often they are
read), with the `bounds` of some columns, once per host (`shared_arrays`); `prune` leaves out what a filter needs
nothing of; `binding` gives every field its column; `fingerprint` identifies it all at resume.
"""
