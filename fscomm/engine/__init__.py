"""One training step in program order: forwards, backwards and updates, as the user's loop calls them.

`agreement` says which modules are served, after a `trial`. The `engine` runs the loop and its forwards, in the mode
that `choice` and the control words decide, by way of its `hooks`. `step` is what it knows of each step, `steps_in_loop`
has all of them, `to_announce` says for which modules rows are fetched ahead, and `plain_runs` why one runs plainly.
`schedule` says how a step is computed: an extension may compute it in parts.
`backward` takes gradients. `program` makes operations of all this, in the order of `table_order`, the law.
"""
