"""The tables of this rank, whatever library shards them: all that the engine knows of them.

`sharding_library` says what fscomm asks of such a library, `binding` what of each of the `served_modules`.
`shadow_kernels`, `pooled_tables` and `plain_kernels` reach its tables; `codec` says how rows travel; `gradient_tap`
gets the gradients of looked-up rows; `handles` completes updates before anybody looks. `torchrec` is the library
that users have.
"""
