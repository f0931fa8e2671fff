"""What the loader yields: a `batch` of `jagged` and keyed values, and the loss scaling for batches of unequal size.

Samples may share events: `merged_windows` merges overlapping windows of a history. A `batch_plan` maps fields to
tensors, which are allocated in `host_memory`. `prefetch` computes batches ahead of the training loop.
`torchrec_binding` is the only file of fsdata that imports TorchRec.
"""
