"""This process and its machine: `local_processes` says which ranks are here and run, `memory_file` how much memory is
free for files that lie in it, `cores` how many threads are worth starting, `one_at_a_time` has one process do what
several need, `at_exit` says what is done when this process ends, `clock` is its time."""
