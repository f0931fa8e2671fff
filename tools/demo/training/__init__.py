"""What runs on every rank of the demo.

The launcher hands a `job` to `train`, which reads from a `plain_loader` or FreeScale's loader, shows
`progress` and keeps what it measured as `measure` defines it.
"""
