"""Loops of sampled lists, compiled by numba."""
