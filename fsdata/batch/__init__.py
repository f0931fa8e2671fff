"""What the loader yields: a `batch` of `jagged` and keyed values, with the loss that is right for unequal batches.

Samples may share events: `windows` of histories are merged. A `batch_plan` says which fields lie in which tensor, and
tensors lie in `host_memory`. `prefetch` makes batches ahead of the loop. `torchrec_binding` is the one place of fsdata
that imports TorchRec.
"""
