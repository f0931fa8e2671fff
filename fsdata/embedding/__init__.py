"""Looked-up rows moved to other ranks in place of samples: `EmbeddingBalance`. Its `kernels` move jagged rows."""
