"""Where the values of a column lie, and in which form.

Values that stand in a row in one form are a *run*. A column is a table of runs, int64 [R + 1, COLUMNS], in the order of
the values; the last line says only how many values there are.
"""

# Columns of the table.
FIRST = 0  # values before the run
FORM = 1
AT = 2  # address of its first byte; of a REPEATED run the position in the dictionary
COLUMNS = 3

# Forms. Others are how many bits a position in the dictionary has, 1 to 32.
PLAIN = 0  # values as the file stores them
FINAL = 64  # values as they are needed
REPEATED = -1  # one value of the dictionary
