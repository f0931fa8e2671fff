"""Commands that write files: `synth` makes data like that of the paper, `optimize` lays files out anew, `histories`
makes a table of histories of an event log, `catalog` says what loaders need of many files, `init` guesses a
schema file, `warm` keeps compiled kernels. `links` writes hardware, from what `exchange_times` measures.
"""
