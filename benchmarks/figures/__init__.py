"""The measured figures of README and docs, written from `benchmarks/results`: `make figures`. `pictures` draws.

A page calls a function of these modules in a comment, as `<!-- [[[cog loading.ways() ]]] -->`; cog puts what it prints
below the comment. Every function prints tables and sentences, and where their figures come from.
"""

__all__ = [
    "balancing",
    "communication",
    "files",
    "gpu",
    "histories",
    "loading",
    "overview",
    "simulation",
    "training",
    "versions",
]
