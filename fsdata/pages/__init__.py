"""FreeScale's own decoder: lists of numbers, straight from the pages of a file.

`forms` decides which columns it decodes and how their values are stored; `page_rows` finds the pages that have needed
rows; `chunk` unpacks the pages of a column chunk and reads the lengths of its rows, without decoding values.
`page_decoder` does this for a row group.
"""
