"""Ranks join; if gloo cannot connect one of them, all of them connect again."""

import contextlib

import pytest
import torch.distributed as dist
from worlds import exit_codes

from freescale_tools.console.ranks import join_ranks


def join(rank, ranks, folder, failures):
    """Rank 1 cannot connect at first, so often."""
    connect, tries = dist.init_process_group, []

    def fails(*given, **options):
        connect(*given, **options)
        store = options["store"]
        tries.append(store)
        store.set(f"connected {rank}", "")
        store.wait([f"connected {each}" for each in range(ranks)])  # none loses its connection before it has it
        if rank == 1 and len(tries) <= failures:
            dist.destroy_process_group()
            dist.distributed_c10d._world.group_count = 1  # as torch leaves it where it cannot connect
            raise RuntimeError("[pair.cc:1] Connection closed by peer. This is typical")

    dist.init_process_group = fails
    dist.rendezvous = lambda *given, **options: iter([(dist.FileStore(f"{folder}/store", ranks), rank, ranks)])
    refused = pytest.raises(RuntimeError, match=r"^the ranks could not connect in 3 tries: Connection closed by peer$")
    with refused if failures > 2 else contextlib.nullcontext():
        join_ranks("gloo", timeout_s=600)
    assert len(tries) == min(failures + 1, 3)
    assert dist.is_initialized() == (failures <= 2)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.parametrize("failures", [1, 3])
def test_all_ranks_connect_again_where_one_could_not(tmp_path, failures):
    assert exit_codes(join, 2, tmp_path, failures) == [0, 0]
