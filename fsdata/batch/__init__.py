"""What the loader yields: a `batch` of `jagged` and keyed values, some of them `shared` by samples or `split` into
segments, and the `loss` that is right for unequal batches. `plain` gives models without TorchRec tensors by name.

A `batch_plan` says which fields lie in which tensor, and tensors lie in `host_memory`. `prefetch` makes batches ahead
of the loop, and `turn` gives them to one iterator at a time. `torchrec_binding` is the one place of fsdata that imports
TorchRec.
"""
