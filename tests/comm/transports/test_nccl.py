"""The NCCL transport over a gloo backend: the contract, ranks that disagree, and what an abort ends."""

import contextlib
import threading
from typing import Any

import over_gloo
import pytest
import torch
import torch.distributed as dist
import transport_contract as contract
from over_gloo import NCCL, PADDED
from patience import PATIENCE_S
from transport_jobs import AllToAll, after_agreement
from worlds import shared_world

from fscomm.transports import nccl
from fsranks.errors import MismatchError, PeerError
from fsranks.rank_context import RankContext, resolve

SIZE = 3
OPEN = {NCCL: over_gloo.open_nccl, PADDED: over_gloo.open_padded}

both = pytest.mark.parametrize("name", OPEN)


@pytest.mark.parametrize(
    ("case", "args"),
    [
        pytest.param(contract.all_kinds, (True,), marks=pytest.mark.long),
        (contract.input_errors, ()),
        (contract.many_in_flight, (False,)),
        (contract.growth, (True,)),
        pytest.param(contract.giant_pair, (), marks=pytest.mark.long),
        (contract.done_without_wait, ()),
        (contract.not_done_while_a_rank_holds_back, ()),
        (contract.kept_alive, ()),
        pytest.param(contract.two_classes, (), marks=pytest.mark.long),
        (contract.closed, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_contract(case: Any, args: tuple[object, ...]) -> None:
    shared_world(SIZE).run(over_gloo.run, case, NCCL, *args)


def test_nothing_is_left_after_close() -> None:
    shared_world(2).run(over_gloo.run, contract.nothing_left, NCCL, False)


@both
def test_splits_that_disagree_raise_on_all_ranks(name: str) -> None:
    shared_world(SIZE).run(disagreeing, name)


def disagreeing(rank: int, world_size: int, name: str) -> None:
    transport = OPEN[name](resolve(), PATIENCE_S, True)
    out, inp = torch.zeros(world_size, 2), torch.zeros(world_size + (rank == 1), 2)
    splits = [1 + (rank == 1), *([1] * (world_size - 1))]  # rank 1 sends rank 0 one row too much
    with pytest.raises(MismatchError, match="rank 1 sends 2 rows to rank 0, which expects 1"):
        transport.all_to_all_v(out, inp, [1] * world_size, splits)
    with pytest.raises(PeerError, match="rank 1 sends 2 rows"):
        transport.meet()
    transport.close("done")


def test_tensors_elsewhere_are_refused() -> None:
    shared_world(2).run(elsewhere)


def elsewhere(rank: int, world_size: int) -> None:
    transport = over_gloo.open_nccl(resolve(), PATIENCE_S, True)
    rows = torch.zeros(world_size, 1, device="meta")
    with pytest.raises(ValueError, match="made for tensors on cpu, got one on meta"):
        transport.all_to_all_v(rows, rows, [1] * world_size, [1] * world_size)
    transport.close("done")


def test_abort_begins_nothing_and_tells_the_others() -> None:
    shared_world(2).run(aborted)


def aborted(rank: int, world_size: int) -> None:
    transport = over_gloo.open_nccl(resolve(), PATIENCE_S, True)
    job, later = (AllToAll("aborted", [[4] * world_size] * world_size) for _ in range(2))
    if rank == 1:
        with after_agreement(lambda: transport.abort("had enough")), pytest.raises(PeerError, match="had enough"):
            job.begin(transport)
    else:
        with pytest.raises(PeerError, match="rank 1 had enough"):
            job.run(transport)
    with pytest.raises(PeerError, match="had enough"):
        later.begin(transport)
    transport.close("done")


def test_abort_from_another_thread_ends_a_wait() -> None:
    shared_world(2).run(aborted_while_waiting)


def aborted_while_waiting(rank: int, world_size: int) -> None:
    transport = over_gloo.open_nccl(resolve(), PATIENCE_S, True)
    job = AllToAll("aborted", [[4] * world_size] * world_size)
    with after_agreement(dist.barrier) if rank == 1 else contextlib.nullcontext():
        if rank == 1:
            job.begin(transport)
        else:
            handle = job.begin(transport)
            threading.Timer(0.1, transport.abort, ["had enough"]).start()
            with pytest.raises(PeerError, match="had enough"):
                handle.wait()
            assert handle.done()
            dist.barrier()
    transport.close("done")


class FakeConfig:
    cta_policy = 0


class FakeOptions:
    def __init__(self) -> None:
        self.config: Any = FakeConfig()


class FakeNccl:
    """A ProcessGroupNCCL that only says how it was made."""

    NCCL_CTA_POLICY_ZERO = 2
    Options = FakeOptions

    def __init__(self, store: dist.Store, rank: int, size: int, options: Any) -> None:
        self.made = (type(store), rank, size, options)
        self.calls: list[object] = []

    def _set_sequence_number_for_group(self) -> None:
        self.calls.append("numbered")

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.calls.append(device)


def test_a_backend_is_made_with_patience_and_without_ctas_if_asked() -> None:
    shared_world(2).run(made)


def made(rank: int, world_size: int) -> None:
    context, device = resolve(), torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match="install a CUDA build of torch"):
        nccl.nccl_backend(context, device, timeout_s=PATIENCE_S, zero_cta=False)
    with pytest.raises(ValueError, match="process group"):
        nccl.nccl_backend(RankContext(rank=0, world_size=2), device, timeout_s=PATIENCE_S, zero_cta=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
        for zero_cta in (False, True):
            backend = nccl.nccl_backend(context, device, timeout_s=PATIENCE_S, zero_cta=zero_cta)
            store, *ranks, options = backend.made
            assert (store, ranks) == (dist.PrefixStore, [rank, world_size])
            assert options.config.cta_policy == (2 if zero_cta else 0)
            assert options._timeout.days >= 30
            assert backend.calls == ["numbered", device]
        patch.setattr(FakeNccl, "Options", lambda: type("Options", (), {"config": object()})())
        with pytest.raises(RuntimeError, match="cannot ask NCCL for zero-CTA"):
            nccl.nccl_backend(context, device, timeout_s=PATIENCE_S, zero_cta=True)
