"""The kernels that the page decoder calls, those that take longest to compile first."""

from fsdata.pages.kernels import headers, locations, rows

READING = (rows.read_pages, headers.read_headers, rows.finish_rows, rows.room_for, locations.begin_with_rows)
RARE = (rows.decode_page, locations.read_locations)
