"""Rows through slots in the receivers' memory, carried by copy engines.

`ring` is the transport; `slots` plans it; a `fabric` of `streams` carries it, over the memory and queues of a driver:
`shared_memory` on the CPU, `cuda_driver` with `cuda_memory`, `descriptors` and `cuda_api` on GPUs. What may fail on one
rank is done `together`.
"""
