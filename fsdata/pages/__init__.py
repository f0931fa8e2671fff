"""What FreeScale decodes itself: lists of numbers, straight from the pages of a file.

`forms` says which columns these are and how their values are stored; `page_rows` says which pages hold the rows that
are needed; `chunk` unpacks the pages of a column chunk, and finds out what they say of its rows, without decoding
values. `page_decoder` does this for a row group.
"""
