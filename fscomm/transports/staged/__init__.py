"""Rows through host memory: the transport `host-staged`, and the host collectives it works over. Can be deleted."""
