"""Ranks that were given different jobs, fail before they meet, or never come."""

import pytest
import torch.distributed as dist
from patience import PATIENCE_S
from played_network import Job
from ranks_as_threads import Ranks
from worlds import shared_world

from fsdata.errors import MismatchError, PeerError
from fsranks.control_group import ControlGroup
from fsranks.errors import name_ranks
from fsranks.job_store import DIAGNOSIS_S, JobStore, StoreConnection
from fsranks.meeting import Meeting, differences
from fsranks.rank_context import RankContext, resolve


def test_differences_name_ranks_and_items() -> None:
    same = {"seed": "7", "files": "ab"}
    assert differences({0: same, 1: dict(same), 2: dict(same)}) == ""
    text = differences({0: same, 1: {**same, "seed": "8"}, 2: {"seed": "8", "files": "ab", "new": "x" * 500}})
    assert "seed: rank 0 has '7', ranks 1, 2 '8'" in text
    assert "new: rank 0 has '(absent)', rank 2 xxx" in text
    assert "files" not in text
    assert len(text) < 500
    assert name_ranks(list(range(64))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (64 in all)"


@pytest.mark.parametrize("size", [1, 60])
def test_long_texts_are_shown_where_they_differ(size: int) -> None:
    names = [f"feature_{number}" for number in range(size)]
    given = [f"Schema(context={names}, labels={labels}, time=None)" for labels in (("click",), ("click", "like"))]
    text = differences({rank: {"schema": schema} for rank, schema in enumerate(given)})
    assert "rank 0 has" in text
    assert "labels=('click',)" in text
    assert "rank 1" in text
    assert "'like'" in text
    assert ("in labels: ..." in text) == (size > 1)


def fail_on_rank_1(context: RankContext) -> None:
    with Meeting(context, what="test", timeout_s=PATIENCE_S) as meeting:
        if context.rank == 1:
            raise FileNotFoundError("no such file: x")
        meeting.agree({"seed": "7"})


def meet(rank: int, world_size: int) -> None:
    context = resolve()
    assert (context.rank, context.world_size) == (rank, world_size)
    assert resolve(rank, world_size).group is not None
    assert resolve(0, 1).group is None
    Meeting(resolve(0, 1), what="test", timeout_s=PATIENCE_S).agree({"rank": str(rank)})  # alone: nothing to compare

    for _ in range(3):
        with Meeting(context, what="test", timeout_s=PATIENCE_S) as meeting:
            meeting.agree({"seed": "7"})
    with (
        pytest.raises(MismatchError, match=r"test: .* balance: rank 0 has 'None', rank 2 'Balance"),
        Meeting(context, what="test", timeout_s=PATIENCE_S) as meeting,
    ):
        meeting.agree({"seed": "7", "balance": "Balance()" if rank == 2 else "None"})
    files = {0: {"a": "1", "b": "1"}, 1: {"a": "1", "b": "2"}, 2: {"a": "1"}}[rank]
    with (
        pytest.raises(MismatchError, match=r"Not the same: b: rank 0 has '1', rank 1 '2', rank 2 '\(absent\)'$"),
        Meeting(context, what="test", timeout_s=PATIENCE_S) as meeting,
    ):
        meeting.agree({"files": repr(files), "seed": "7"}, parts={"files": lambda: files})
    with pytest.raises(Exception, match="no such file: x") as caught:
        fail_on_rank_1(context)
    assert isinstance(caught.value, FileNotFoundError if rank == 1 else PeerError)
    assert rank == 1 or "rank 1 failed: FileNotFoundError" in str(caught.value)

    pair = dist.new_group([0, 2])
    if rank != 1:
        inside = resolve(process_group=pair)
        assert (inside.rank, inside.world_size) == (rank // 2, 2)
        Meeting(inside, what="pair", timeout_s=PATIENCE_S).agree({"seed": "7"})
        with pytest.raises(ValueError, match="leave rank and world_size out"):
            resolve(0, 3, pair)
    else:
        with pytest.raises(ValueError, match="not in process_group"):
            resolve(process_group=pair)
    with Meeting(context, what="test", timeout_s=PATIENCE_S) as meeting:
        meeting.agree({"seed": "7"})


def test_ranks_agree_or_all_raise() -> None:
    shared_world(3).run(meet)


def alone(store: JobStore, rank: int) -> str:
    """What a rank of three hears that waits for nobody."""
    meeting = Meeting(RankContext(rank=rank, world_size=3), what="test", timeout_s=0)
    meeting._store = store
    with pytest.raises(PeerError) as caught, meeting:
        meeting.agree({"seed": "7"})
    return str(caught.value)


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_never_come_are_named_and_hear_of_it_when_they_come(first: int) -> None:
    store = JobStore(StoreConnection(dist.HashStore()), "")
    said = alone(store, first)
    assert f"ranks {1 - first}, 2 did not come within 0 s" in said
    assert alone(store, 1 - first) == alone(store, 2) == said


def connect_while_meeting(job: Job, rank: int) -> float:
    """When this rank hears that rank 1 does not come."""
    if rank != 1:
        with pytest.raises(PeerError, match="rank 1 did not come"):  # noqa: SIM117
            with Meeting(job.context(rank), what="test", timeout_s=10.0):
                ControlGroup(job.context(rank), timeout_s=10.0)
    return job.ranks.now()


def test_what_every_rank_has_heard_is_not_waited_for_once_more() -> None:
    ranks = Ranks(3, seed=7)
    job = Job(ranks)
    heard_s = ranks.run(lambda rank: connect_while_meeting(job, rank))
    assert max(heard_s) < 10.0 + DIAGNOSIS_S + 1.0
