"""Assigns a column, expression or default to each field of a schema.

`bind` does it, for every kind of file. `column_paths` finds columns, also inside structs; `arrow_types` decides which
types can serve a field; `key_types` rejects keys of two types under one hash; `counted` rejects integers of different
units that are compared or mixed.
"""
