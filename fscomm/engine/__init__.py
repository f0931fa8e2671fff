"""One training step in program order: forwards, backwards and updates, as the user's loop calls them.

`engine` takes batches and forwards; `forward_modes` and the control word decide how a forward runs;
`pending_gradients` collects what autograd brings; `table_access` submits reads and updates in the order of
`table_order`, the law; `step_counts` tells the recorder what a step moves; `after_block` serves a late backward.
"""
