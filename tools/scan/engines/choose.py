"""Chooses where work on many files runs. Every engine gives the same results in the same order."""

import contextlib
from collections.abc import Iterator

from freescale_tools.scan.engines.engine import Engine
from freescale_tools.scan.engines.threads import Local


@contextlib.contextmanager
def engine(name: str, *, threads: int | None = None) -> Iterator[Engine]:
    """The engine named `local` or `ray`, for the time of the block.

    Raises UsageError for `ray` if Ray is not installed, ValueError for another name.
    """
    if name == "local":
        yield Local(threads)
    elif name == "ray":
        from freescale_tools.scan.engines.ray_cluster import cluster

        with cluster() as found:
            yield found
    else:
        raise ValueError(f"an engine is 'local' or 'ray', not {name!r}")
