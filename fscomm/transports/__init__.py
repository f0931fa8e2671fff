"""Ways to move rows between ranks: each is a `transport`, by its name made in `opening`.

`gloo` over TCP; `staged` through host memory; `ring` by copy engines; `nccl` with and without kernels. `handshake`:
sizes are compared before an operation. `choice`: which one all ranks take, and the proof that it works.
`sum_order`: whether gloo's own sums have the bits that pooled tables need.
"""
