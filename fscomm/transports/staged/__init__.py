"""Rows through host memory: the transport `host-staged`. Can be deleted."""
