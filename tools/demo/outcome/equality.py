"""Compares two runs bit by bit."""

from freescale_tools.demo.training.measure import Run


def difference(one: Run, other: Run) -> str | None:
    """The first difference of two runs: a loss of a rank and step, or the final weights; None if equal.

    Losses are compared rank by rank, without a tolerance.
    """
    if len(one.ranks) != len(other.ranks):
        return f"{len(one.ranks)} and {len(other.ranks)} ranks"
    for rank, (steps, others) in enumerate(zip(one.ranks, other.ranks, strict=True)):
        if len(steps) != len(others):
            return f"rank {rank}: {len(steps)} and {len(others)} steps"
        for step, (left, right) in enumerate(zip(steps, others, strict=True)):
            if left.loss != right.loss:
                return f"step {step}, rank {rank}: losses {left.loss!r} and {right.loss!r}"
    if one.normalized_entropy() != other.normalized_entropy():
        return f"NE {one.normalized_entropy()!r} and {other.normalized_entropy()!r}"
    for rank, (mine, theirs) in enumerate(zip(one.weights, other.weights, strict=True)):
        if mine != theirs:
            return f"rank {rank}: tables, dense weights or optimizer states at the end"
    return None
