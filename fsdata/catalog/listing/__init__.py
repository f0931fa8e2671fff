"""Which files there are: `find_files` makes a `file_list` of paths, globs and folders. `hosts` share the footers."""
