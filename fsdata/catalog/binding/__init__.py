"""Which column, expression or default serves each field of a schema.

`bind` does it, for every kind of file. `column_paths` finds columns, also inside structs; `arrow_types` says which
types can serve a field; `key_types` refuses keys of two types under one hash, and `counted` integers that count
something else than those they are compared or mixed with.
"""
