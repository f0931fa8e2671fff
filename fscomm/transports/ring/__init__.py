"""Rows by copy engines, without a kernel: the transport `copy-engine`, and the copies of `nccl-ce`. Can be deleted.

`ring` sends through `slots`, in memory and queues of `cuda_driver` on GPUs, or of `shared_memory` on the CPU.
"""
