"""The measured figures of README and docs, written from `benchmarks/results`: `make figures`. `pictures` draws,
`commands` writes the reference of the command line.

A page calls a function of these modules in a comment, as `<!-- [[[cog loading.ways() ]]] -->`; cog puts what it prints
below the comment. Every function prints tables and sentences, and where their figures come from. `examples` prints
what the examples of a page print.
"""

__all__ = [
    "balancing",
    "commands",
    "communication",
    "examples",
    "files",
    "gpu",
    "histories",
    "loading",
    "overview",
    "simulation",
    "slower",
    "timelines",
    "training",
    "versions",
]
