"""Side tables: `join` is what the user says, a `side_table` brings fields by key, from memory or disk.

Its rows may also come later than those that need them.
"""
