"""Ways to move rows between ranks: each is a `transport`, by its name made, and tried once, in `opening`.

`together`: what ranks tell each other while they make one. `watch`: the limit and the end of what is under way.
`cutting`: how an operation is cut into what fits. `gloo` over TCP; `staged` through host memory; `nccl` with and
without kernels; `ring` through `slots`, in the memory and queues of `shared_memory` on the CPU or of `cuda_driver` on
GPUs.
"""
