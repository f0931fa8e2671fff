"""What there is on this machine: `local_processes` says which ranks are here and run, `memory_file` how much memory is
free for files that lie in it."""
