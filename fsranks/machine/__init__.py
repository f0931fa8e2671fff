"""This process and its machine: `local_processes` says which ranks are here and run, `memory_file` how much memory is
free for files that lie in it, `cores` how many threads are worth starting, `at_exit` what is done when this process
ends."""
