"""What ranks ask of NCCL, and what makes all of them refuse it. `contract/` has what its transports bring."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.device import Host
from fscomm.transports import together
from fscomm.transports.opening import open_transport
from fscomm.transports.ring import cuda_driver
from fscomm.transports.together import StepFailed
from fsranks.rank_context import resolve

USUAL = {"built": True, "version": (2, 29, 7), "policies": True, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}


class OnCuda(Host):
    where = torch.device("cuda", 0)


def opened(rank: int, size: int, name: str, by_rank: list[dict[str, Any]], urgent: bool = False) -> Any:
    """Zero-CTA, priority and patience that a ProcessGroupNCCL is asked for; or why there is none.

    by_rank: what is not as `USUAL`, of torch and of the environment.
    """
    here, asked = {**USUAL, "gpu": f"GPU {rank}", **by_rank[rank]}, list[Any]()

    class Nccl:
        NCCL_CTA_POLICY_ZERO = 2

        @staticmethod
        def Options() -> Any:
            return SimpleNamespace(config=SimpleNamespace(cta_policy=0) if here["policies"] else None)

        def __init__(self, store: dist.Store, rank: int, size: int, options: Any) -> None:
            asked[:] = options.config.cta_policy == 2, options.is_high_priority_stream, options._timeout.days >= 30
            self.abort = self._set_sequence_number_for_group = lambda: None
            self.eager_connect_single_device = lambda where: None

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NCCL_CTA_POLICY", raising=False)
        for variable in filter(str.isupper, here):
            patch.setenv(variable, here[variable])
        patch.setattr(dist, "is_nccl_available", lambda: here["built"])
        patch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
        patch.setattr(torch.cuda.nccl, "version", lambda: here["version"])
        patch.setattr(together, "gpu_id", lambda where: here["gpu"])
        patch.setattr(cuda_driver, "engine_copy", lambda where: torch.Tensor.copy_)
        try:
            open_transport(name, resolve(), OnCuda(), timeout_s=PATIENCE_S, urgent=urgent).close("done")
        except StepFailed as failed:
            return str(failed)
    return asked


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("name", ["nccl", "nccl-ce"])
def test_nccl_is_asked_for_patience_for_priority_if_rows_are_urgent_and_for_no_ctas_by_nccl_ce(
    name: str, urgent: bool
) -> None:
    assert shared_world(2).run(opened, name, [{}, {}], urgent) == [[name == "nccl-ce", urgent, True]] * 2


SHARED = "ranks 0, 1 share a GPU: NCCL wants a GPU for each rank"
ON_ONE_GPU = [{"gpu": "it", "FREESCALE_SHARED_GPU": "1", "NCCL_HOSTID": f"of rank {rank}"} for rank in range(2)]
OVERRIDES = "on rank 1: RuntimeError: NCCL_CTA_POLICY=1 overrides the zero-CTA policy: unset it"


@pytest.mark.parametrize(
    ("name", "here", "why"),
    [
        ("nccl", [{}, {"built": False}], "on rank 1: RuntimeError: torch .* install a CUDA build of torch"),
        ("nccl", [{"version": (2, 27, 5)}, {}], r"all ranks .*: on rank 0: NCCL 2\.27\.5; on rank 1: NCCL 2\.29\.7"),
        ("nccl", [{"gpu": "it"}] * 2, SHARED),
        ("nccl", [ON_ONE_GPU[0], {**ON_ONE_GPU[1], "FREESCALE_SHARED_GPU": "0"}], SHARED),
        ("nccl", ON_ONE_GPU, ""),
        ("nccl", [ON_ONE_GPU[0]] * 2, "FREESCALE_SHARED_GPU=1, but ranks 0, 1 have the same NCCL_HOSTID"),
        ("nccl-ce", ON_ONE_GPU, SHARED),
        ("nccl-ce", [{"NCCL_CTA_POLICY": "2"}, {"NCCL_CTA_POLICY": "1"}], OVERRIDES),
        ("nccl-ce", [{"NCCL_CTA_POLICY": "3"}, {"NCCL_CTA_POLICY": "NCCL_CTA_POLICY_ZERO"}], ""),
        ("nccl-ce", [{"policies": False}] * 2, "on ranks 0, 1: RuntimeError: torch .* cannot ask NCCL for zero-CTA"),
    ],
)
def test_what_one_rank_lacks_is_told_to_all(name: str, here: list[dict[str, Any]], why: str) -> None:
    """Ranks share a GPU in tests only: by a switch that all set, each with another host for NCCL, and never with
    buffers of one NVLink domain."""
    one, other = shared_world(2).run(opened, name, here)
    assert one == other
    assert re.match(why, one) if why else isinstance(one, list)
