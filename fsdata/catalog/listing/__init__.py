"""Which files there are: `find_files` makes a `file_list` of paths, globs and folders, and
`tables` of Delta Lake and Iceberg tables. `hosts` share what takes long. What a
`remote_file` answers is looked at: whether all bytes came."""
