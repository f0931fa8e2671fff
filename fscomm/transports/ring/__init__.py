"""Rows through slots in the receivers' memory, carried by copy engines.

`ring` is the transport; a `fabric` has the slots, in the memory and queues of a driver: `shared_memory` on the CPU,
`cuda_driver` on GPUs, by calls of `cuda_api`.
"""
