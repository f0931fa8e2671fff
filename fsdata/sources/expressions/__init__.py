"""Expressions over a file's columns.

`expressions` checks and evaluates them; `elementwise` says which polars functions are allowed; `sql` reads those of
schema files, `sql_functions` says what they mean.
"""
