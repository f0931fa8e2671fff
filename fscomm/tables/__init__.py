"""The tables of this rank, whatever library shards them: all that the engine knows of them.

`sharding_library` says what fscomm asks of such a library, `binding` what of each module that is served.
`shadow_kernels` reach its tables, group by group in `group_tables`; `lookups` are look-ups as autograd sees them;
`whole_call` is a forward of which parts are handed out. `handles` are the tensors by which a program looks at tables,
and complete updates before each look; `unseen_calls` intercepts calls that their class does not see, `references`
counts what else refers to the memory. A `forward_guard` is asked where a forward may give rows to other ids.
`torchrec` is the library that users have.
"""
