"""Which files there are: `find_files` (on this machine by `walk`) makes a `file_list` of paths, globs and folders, and
`tables` of Delta Lake and Iceberg tables. A `progress_bar` shows what takes long, and `hosts` share it. What a
`remote_file` answers is looked at: whether all bytes came."""
