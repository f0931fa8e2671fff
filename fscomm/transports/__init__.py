"""Ways to move rows between ranks: each is a `transport`, which `opening` makes by its name, and tries once.

`together`: what ranks send each other while they make one. `watch`: the time limit and the end of what is under way.
`cutting`: how an operation is cut into what fits. `gloo` over TCP; `nccl` with and without kernels. Extensions, which
can be deleted: `staged/` through host memory, `ring/` by copy engines.
"""
