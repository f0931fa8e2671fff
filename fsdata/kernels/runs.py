"""The table of a column: the addresses of its values, and their encodings.

Consecutive values in one encoding are a *run*. A column is a table of runs, int64 [R + 1, COLUMNS], in the order of the
values. Only FIRST of the last line is used: the number of all values, so that a run's size is a difference of lines.
"""

# Columns of the table.
FIRST = 0  # number of the values before the run
FORM = 1
AT = 2  # address of its first byte; of a REPEATED run the index of its value in the dictionary
COLUMNS = 3

# Forms. Values from 1 to 32: bit-packed indices into the dictionary, of so many bits each.
PLAIN = 0  # values in the type that the file stores
FINAL = 64  # values in the type of the batch
REPEATED = -1  # one value of the dictionary
