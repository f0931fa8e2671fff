"""Other forms of a batch: `plain` gives models without TorchRec tensors by name, `parts` cuts a batch into several."""
