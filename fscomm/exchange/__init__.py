"""What ranks send each other, and who sends it.

An `executor` does `operations`: on the host in `threads`, on a GPU in `streams`. Both have `worker`s, in which
`id_exchange` runs first, one step ahead, and `rows` moves rows and gradients. `handed_over` is
what threads give each other. `wire_gate` lets exclusive parts go when `wire_priority` allows; `control_word` agrees in
the forward; `lost_peers` ends exchanges that are not fscomm's own.
"""
