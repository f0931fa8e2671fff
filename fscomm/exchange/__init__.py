"""What ranks send each other, and the threads that send it.

`connections` opens all connections and workers for the `served_modules`; `id_exchange` runs first, one `step` ahead;
`control_word` agrees in the forward; `row_exchange` moves rows and gradients in `parts`, each in a `worker`;
`wire_gate` lets exclusive parts go when `wire_priority` allows; `lost_peers` ends exchanges that are not fscomm's own.
"""
