"""The tables of this rank: all that the engine knows of them.

`binding` is what fscomm asks of each module that is served, and `forward_guard` what it asks where a forward may give
rows to other ids. `shadow_kernels` read and update its tables, group by group in `group_tables`; `lookups` are look-ups
as autograd sees them; `whole_call` is one forward of a whole step in parts. `handles` are the tensors through which a
program reads and writes tables, and complete updates before each access; `unseen_calls` intercepts calls that their
class does not see. `torchrec` is the library whose modules are served.
"""
