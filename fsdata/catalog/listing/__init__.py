"""Which files there are: `find_files` (on this machine by `walk`) makes a `file_list` of paths, globs and folders."""
