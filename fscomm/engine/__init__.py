"""One training step in program order: forwards, backwards and updates, as the user's loop calls them.

`agreement` says which modules are served, after a `trial`. `announced` keeps the steps of the loop; `engine` runs
forwards, in the mode that `forward_modes` and the control words decide. `updates` takes what backward brings, gathered
in `pending_gradients`; `flushing` completes updates before tables are read or written by hand. `table_access` submits
reads and updates in the order of `table_order`, the law. `after_block` serves a backward pass that comes late.
"""
