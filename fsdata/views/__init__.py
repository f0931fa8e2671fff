"""Views of a batch: `plain` returns tensors by name for models without TorchRec, `parts` cuts a batch into
microbatches."""
