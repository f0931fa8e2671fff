"""Balancing behind the embedding stage: `hooks` for a model, `dispatch` for the rows.

`EmbeddingBalance` moves looked-up rows in place of samples.
"""

from fsdata.embedding_balance.hooks import EmbeddingBalance

__all__ = ["EmbeddingBalance"]
