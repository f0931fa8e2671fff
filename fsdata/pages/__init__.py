"""FreeScale's own decoder: lists of numbers, decoded from the pages of a file without pyarrow.

`forms` decides which columns it decodes and how their values are stored. `page_rows` finds the pages that have needed
rows. `chunk` unpacks the pages of a column chunk and reads the lengths of its rows, without decoding values.
`page_decoder` applies all three to the columns of a row group. `small_groups` is about short row groups, which pyarrow
decodes together.
"""
