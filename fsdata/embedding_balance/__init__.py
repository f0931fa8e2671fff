"""Balancing behind the embedding stage: `hooks` for a model, `dispatch` for the rows.

`EmbeddingBalance` moves looked-up rows in place of samples.
"""
