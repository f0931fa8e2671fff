"""What ranks send each other, and who sends it.

An `executor` does `operations`, on the host by threads, on a GPU by streams. It has `worker`s, in which `id_exchange`
runs first, one step ahead, and `rows` moves rows and gradients. `handed_over` is what threads give each other.
`wire_gate` says which class may use the wire; `control_word` agrees in the forward; `lost_peers` ends exchanges that
are not fscomm's own. `stream_order` declares what the streams of a GPU hand to each other.
"""
