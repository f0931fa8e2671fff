"""What the job's store is asked for when many ranks meet: by one rank a few keys, by all together in proportion."""

from collections.abc import Callable
from typing import Any

import pytest
from played_network import Job
from ranks_as_threads import Ranks

from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.meeting import Meeting, gather
from fsranks.rank_context import RankContext

SIZES = (16, *(pytest.param(size, marks=pytest.mark.long) for size in (64, 256)))
LIMIT_S = 10.0  # of the played clock


def all_ranks(size: int, work: Callable[[RankContext], Any], late: int = -1) -> tuple[list[Any], Job]:
    """What `work` gave on every rank of a job whose store is hosted by another process. `late` begins after 5 s."""
    ranks = Ranks(size, seed=size)
    job = Job(ranks, store_host=None, machines=str)

    def run(rank: int) -> Any:
        if rank == late:
            ranks.wait(5.0)
        return work(job.context(rank))

    return ranks.run(run), job


def check_asked(job: Job, to_rank_0: int) -> None:
    """The keys that a rank asks for: few; rank 0 collects those of all."""
    asked = [len(keys) for keys in job.asked]
    assert max(asked[1:]) <= 4
    assert asked[0] <= to_rank_0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("late", [-1, 0, 9], ids=["all in time", "rank 0 late", "rank 9 late"])
def test_a_rank_meets_all_others_for_a_few_keys(size: int, late: int) -> None:
    def meet(context: RankContext) -> list[str]:
        return Meeting(context, what="test", timeout_s=LIMIT_S).agree({"seed": "7"}, tell=f"I am {context.rank}")

    told, job = all_ranks(size, meet, late=late)
    assert told == [[f"I am {rank}" for rank in range(size)]] * size
    check_asked(job, size + 4)


@pytest.mark.parametrize("size", SIZES)
def test_texts_are_gathered_for_a_few_keys(size: int) -> None:
    texts, job = all_ranks(size, lambda of: gather(of, f"text {of.rank}", what="test", timeout_s=LIMIT_S))
    assert texts == [[f"text {rank}" for rank in range(size)]] * size
    check_asked(job, size + 4)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_connect_for_a_few_keys(size: int) -> None:
    groups, job = all_ranks(size, lambda of: ControlGroup(of, timeout_s=LIMIT_S))
    assert not any(group.one_host for group in groups)
    check_asked(job, size + 4)


def test_where_rank_0_is_late_the_first_answer_counts_for_all() -> None:
    """Rank 1 gives up first and says that rank 0 is missing: rank 0, which then finds all notes, says the same."""

    def meet(context: RankContext) -> str:
        limit_s = 1.0 if context.rank else LIMIT_S
        with pytest.raises(PeerError) as caught:
            Meeting(context, what="test", timeout_s=limit_s).agree({})
        return str(caught.value)

    said, _ = all_ranks(4, meet, late=0)
    assert len(set(said)) == 1
    assert "rank 0 did not come within 1 s" in said[0]
