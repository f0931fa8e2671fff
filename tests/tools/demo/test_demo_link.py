"""Links of a stated speed: options, what refuses them, and what pacing waits for."""

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from worlds import shared_world

from freescale_tools.demo import link, pacing
from freescale_tools.demo.data import LINK_EVENTS, colliding
from freescale_tools.demo.link import Link, open_link, parse_link
from freescale_tools.demo.pacing import Bucket, paced
from fsdata import FreeScaleDataLoader
from fsranks.control_group import control_group
from fsranks.rank_context import resolve


def test_speeds_are_read_with_their_unit():
    for text, mbit in (("100mbit", 100), (" 1Gbit ", 1_000), ("51200kbit", 51.2), ("12.5mbit", 12.5)):
        assert parse_link(text) == mbit
    for text in ("100", "mbit", "0mbit", "-1mbit", "4999kbit", "100mbyte", ""):
        with pytest.raises(ValueError, match="such as 100mbit, got"):
            parse_link(text)


def test_a_missing_program_is_why_exchanges_are_paced():
    with mock.patch.object(link.shutil, "which", lambda name: None if name == "tc" else name):
        found = open_link(100)
    assert (found.shaped, found.inside(["python"])) == (False, ["python"])
    assert "paced inside the processes" in found.how()
    assert "not possible: `tc` (iproute2) is not installed" in found.how()


def test_a_namespace_that_is_refused_is_why_exchanges_are_paced(tmp_path, monkeypatch):
    for name, script in (("unshare", "echo unshare: Operation not permitted >&2; exit 1"), ("ip", ""), ("tc", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = open_link(100)
    assert found.why_not == "unshare: Operation not permitted"
    assert "shaped by `tc tbf`" in Link(mbit=100).how()


def test_the_bucket_passes_bytes_one_after_the_other():
    """100 bytes a second; 5 ms of the link's time may be saved up."""
    now = 10.0
    bucket = Bucket(100, clock=lambda: now)
    assert bucket.reserve(100) == pytest.approx(10.995)
    assert bucket.reserve(50) == pytest.approx(11.495), "behind the first"
    now = 20.0
    assert bucket.reserve(100) == pytest.approx(20.995), "idle time is not saved up"


def paced_exchanges(rank, world_size):
    """What waiting sleeps for 200,000 bytes to the other rank at 1 MB/s: by torch, at once or later, and by a group."""
    given = torch.arange(100_000, dtype=torch.float32)
    halves = [50_000, 50_000]
    group = control_group(resolve(), timeout_s=300)

    def at_once(out):
        dist.all_to_all_single(out, given)

    def later(out):
        dist.all_to_all_single(out, given, halves, halves, async_op=True).wait()

    def through_group(out):
        group.all_to_all(out, given, halves, halves)

    found = []
    for exchange in (at_once, later, through_group):
        for limited in (True, False):
            out, slept = torch.empty_like(given), []
            clock = SimpleNamespace(monotonic=lambda: 100.0, sleep=slept.append)
            with mock.patch.object(pacing, "time", clock), paced(1e6) if limited else nullcontext():
                exchange(out)
            assert torch.equal(out, given.view(2, -1)[rank].repeat(2))
            found.append(slept)
    group.close("done")
    return found


def test_paced_exchanges_last_as_long_as_their_bytes_take():
    for slept in shared_world(2).run(paced_exchanges):
        assert slept[::2] == [[pytest.approx(0.195)]] * 3
        assert slept[1::2] == [[]] * 3


@pytest.mark.parametrize("rate", [0.12, 0.8])
def test_sets_collide_as_stated(tmp_path, rate):
    ranks, batch_size, steps = 2, 4, 5
    data = colliding(tmp_path, rate, ranks=ranks, batch_size=batch_size, steps=steps, seed=3)
    assert data.rows == ranks * batch_size * steps
    of_rank = []
    for rank in range(ranks):
        with FreeScaleDataLoader(
            data.sources, data.schema(), batch_size=batch_size, mix=data.mix, rank=rank, world_size=ranks
        ) as loader:
            of_rank.append([batch.features["item_ids"].values().numpy() for batch in loader])
    batches = [np.concatenate(parts) for parts in zip(*of_rank, strict=True)]
    assert [len(ids) for ids in batches] == [ranks * batch_size * LINK_EVENTS] * steps
    for before, batch in pairwise(batches):
        assert np.isin(batch, before).mean() == pytest.approx(rate, abs=1e-4)
