"""Which transport ranks agree on, from tables of what they offer."""

from dataclasses import replace

import pytest
import torch

from fscomm.transports import choice as choosing
from fscomm.transports.capabilities import Capabilities, read
from fscomm.transports.choice import NAMES, choose

MASK = "CUDA_DEVICE_MAX_CONNECTIONS"
CPU = Capabilities(device="cpu", host="a", torch="2.13.0")
GPU = Capabilities(
    device="cuda",
    host="a",
    torch="2.13.0",
    index=0,
    gpu="H200",
    nccl=(2, 29, 7),
    cuda_bindings="13.5.0",
    driver=13000,
    pinned=True,
    environment={MASK: "32"},
)
BARE = Capabilities(device="cuda", host="a", torch="2.11.0")


def gpus(size=4, *, how="nvlink", every=None, **changes):
    """`size` ranks of one host, each with its GPU; `every` changes all, others are by rank as r1={"nccl": ...}."""
    uuids = [f"gpu-{rank}" for rank in range(size)]
    alike = [replace(GPU, index=r, uuid=uuids[r], reach={u: how for u in uuids if u != uuids[r]}) for r in range(size)]
    return [replace(record, **(every or {}), **changes.get(f"r{rank}", {})) for rank, record in enumerate(alike)]


def cpus(size=3, **changes):
    return [replace(CPU, **changes.get(f"r{rank}", {})) for rank in range(size)]


def having(**variables):
    return {"environment": {MASK: "32", **variables}}


CUDA_12 = {"cuda_bindings": "12.9.0", "driver": 12080}
OLD, NEW, ELSEWHERE = {"nccl": (2, 27, 5)}, {"nccl": (2, 30, 7)}, {"host": "b"}
NO_CE = {"nccl", "copy-engine", "host-staged"}  # all but nccl-ce
NO_COPY = {"nccl", "nccl-ce", "host-staged"}  # all but copy-engine
NO_NCCL = {"copy-engine", "host-staged"}
ALL, NEITHER = NO_CE | NO_COPY, NO_CE & NO_COPY
ABLE = {
    # what all of these ranks can use
    "gpus alike": (gpus(), ALL),
    "cpus alike": (cpus(), {"gloo", "copy-engine", "host-staged"}),
    "cpus apart": (cpus(r1=ELSEWHERE), {"gloo", "host-staged"}),
    "gpus apart": (gpus(r3=ELSEWHERE), NEITHER),
    "gpus apart, new nccl": (gpus(every=NEW, r3=ELSEWHERE), NO_COPY),
    "one older nccl": (gpus(r3=OLD), NO_NCCL),
    "older nccl": (gpus(every=OLD), NO_CE),
    "one newer nccl": (gpus(r0=NEW), NO_NCCL),
    "one without nccl": (gpus(r1={"nccl": None}), NO_NCCL),
    "one without bindings": (gpus(r2={"cuda_bindings": None}), NEITHER),
    "bindings newer than the driver": (gpus(r2={"driver": 12090}), NEITHER),
    "bindings of the older driver": (gpus(every=CUDA_12), ALL),
    "bindings older than the driver": (gpus(r2={"cuda_bindings": "12.9.0"}), ALL),
    "over pcie": (gpus(how="peer"), NEITHER),
    "one pair over pcie": (gpus(r0={"reach": {"gpu-3": "peer"}}), NEITHER),
    "one pair unreachable": (gpus(r0={"reach": {"gpu-3": "none"}}), NEITHER),
    "each sees its own device only": (gpus(every={"reach": {}, "index": 0}), NO_COPY),
    "one hardware queue": (gpus(r1=having(**{MASK: "1"})), NO_COPY),
    "as many hardware queues as by default": (gpus(r1={"environment": {}}), NO_COPY),
    "other cta policy": (gpus(r0=having(NCCL_CTA_POLICY="1")), NO_CE),
    "zero cta policy": (gpus(r0=having(NCCL_CTA_POLICY="2")), ALL),
    "nccl without p2p": (gpus(r0=having(NCCL_P2P_DISABLE="1")), NO_CE),
    "nccl over sockets": (gpus(r0=having(NCCL_P2P_LEVEL="LOC")), NO_CE),
    "nccl without vmm": (gpus(r0=having(NCCL_CUMEM_ENABLE="0")), NO_CE),
    "no windows": (gpus(r0=having(NCCL_WIN_ENABLE="0")), NO_CE),
    "blocking launches": (gpus(r0=having(CUDA_LAUNCH_BLOCKING="1")), {"nccl"}),
    "nothing pinned": (gpus(r0={"pinned": False}), ALL - {"host-staged"}),
    "two on one gpu": (gpus(2, r1={"uuid": "gpu-0"}), NO_NCCL),
    "tables on both": ([CPU, *gpus(2)], set()),
    "bare gpus": ([BARE] * 2, set()),
}


@pytest.mark.parametrize("ranks", ABLE)
def test_by_name_whatever_all_can_use_and_by_itself_only_what_is_proven(ranks):
    records, able = ABLE[ranks]
    for asked in NAMES:
        choice = choose(records, asked)
        assert choice.name == (asked if asked in able else None)
        assert set(choice.why_not) == set(NAMES) - {choice.name}
        assert all(choice.why_not.values())
    choice = choose(records, "auto")
    assert choice.name == ("gloo" if "gloo" in able else None)
    for name in NAMES:
        why = choice.why_not.get(name, "")
        assert (f"transport={name!r}" in why) == ("shown to be exact" in why) == (name in able - {"gloo"})


@pytest.mark.parametrize(
    ("records", "name", "words"),
    [
        (gpus(r3=OLD), "nccl-ce", "rank 3 has NCCL 2.27.5, needs 2.28"),
        (gpus(r1={"nccl": None}, r2={"nccl": None}), "nccl-ce", "ranks 1, 2 have no NCCL, needs 2.28"),
        (gpus(r3={"nccl": (2, 28, 9)}), "nccl", "ranks 0, 1, 2 have NCCL 2.29.7, rank 3 has NCCL 2.28.9"),
        (gpus(r3=ELSEWHERE), "nccl-ce", "ranks 0, 1, 2, 3 have NCCL 2.29.7, needs 2.30.7"),
        (cpus(r1=ELSEWHERE), "copy-engine", "one host, ranks 0, 2 and rank 1 are apart"),
        (cpus(), "nccl", "on the CPU"),
        (gpus(), "gloo", "host-staged"),
        (gpus(r2={"cuda_bindings": None}), "copy-engine", "rank 2 has no cuda.bindings"),
        (gpus(r2={"cuda_bindings": None}), "nccl-ce", "pip install cuda-bindings"),
        (
            gpus(r2={"driver": 12080}),
            "copy-engine",
            "rank 2 has a driver of CUDA 12.8 and cuda-bindings 13.5.0, which needs the driver of its CUDA",
        ),
        (gpus(3, how="peer"), "copy-engine", "no NVLink between ranks 0 and 1, 0 and 2, 1 and 2"),
        (gpus(3, how="peer"), "nccl-ce", "no NVLink between ranks 0 and 1, 0 and 2, 1 and 2"),
        (gpus(2, every={"reach": {}}), "copy-engine", "no view of each other's devices: ranks 0 and 1, so NVLink"),
        (gpus(r1={"environment": {}}), "copy-engine", f"rank 1 has {MASK}=8 (not set): three rings"),
        (gpus(2, r1={"uuid": "gpu-0"}), "nccl", "ranks 0, 1 share one"),
        ([CPU, *gpus(2)], "gloo", "rank 0 has tables on cpu, ranks 1, 2 have tables on cuda"),
        # All reasons at once:
        (gpus(r0={"cuda_bindings": None}, r1=having(**{MASK: "1"})), "copy-engine", "rank 0 has no cuda.bindings"),
        (gpus(r0={"cuda_bindings": None}, r1=having(**{MASK: "1"})), "copy-engine", f"; rank 1 has {MASK}=1: three"),
    ],
)
def test_reasons_name_ranks(records, name, words):
    assert words in choose(records, name).why_not[name]


def test_the_best_comes_first_once_it_is_proven(monkeypatch):
    monkeypatch.setattr(choosing, "PROVEN", NAMES)
    assert choose(cpus(), "auto").name == "gloo"
    assert choose(gpus(), "auto").name == "copy-engine"
    assert choose(gpus(r0=having(**{MASK: "8"})), "auto").name == "nccl-ce"
    assert choose(gpus(how="none"), "auto").name == "host-staged"
    assert choose(gpus(how="none", r0={"pinned": False}), "auto").name == "nccl"
    assert choose(gpus(), "auto").why_not["nccl"] == (
        "these ranks can use it; after copy-engine, as its kernels take multiprocessors from compute"
    )


def test_one_line_says_it_all():
    line = choose(gpus(r3=OLD, r1=having(**{MASK: "1"})), "nccl-ce").line()
    assert "\n" not in line
    assert line.startswith("there is no transport for these rows (transport='nccl-ce'). not nccl-ce: rank 3 has NCCL")
    assert "host-staged: these ranks can use it when asked for transport='host-staged'" in line
    assert choose(cpus(), "auto").line().startswith("rows travel by gloo (transport='auto'). not nccl: ")


def test_warnings_name_ranks():
    assert choose(gpus(), "nccl").warnings == ()
    choice = choose(gpus(r1=having(**{MASK: "1"}), r2={"torch": "2.11.0"}), "nccl")
    version, setting, queues = choice.warnings
    assert version == "the ranks differ in torch: ranks 0, 1, 3 have 2.13.0, rank 2 has 2.11.0"
    assert setting == f"the ranks differ in {MASK}: ranks 0, 2, 3 have 32, rank 1 has 1"
    assert queues.startswith(f"rank 1 has {MASK}=1: with one hardware queue")
    assert "Warning: the ranks differ in torch" in choice.line()
    (driver,) = choose(gpus(r2={"driver": 12040, "cuda_bindings": "12.9.0"}), "copy-engine").warnings
    assert driver.startswith("rank 2 has an older driver than CUDA 12.8")


def test_the_only_rank_has_nothing_to_lack():
    assert choose([BARE], "nccl").name == "nccl"
    assert choose([BARE], "auto").name == "copy-engine"
    assert choose([CPU], "auto").name == "gloo"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_this_machine_can_always_be_read_and_records_travel_as_text(device, monkeypatch):
    monkeypatch.setenv("NCCL_CTA_POLICY", "2")
    record = read(torch.device(device))
    assert (record.device, record.torch) == (device, torch.__version__)
    assert record.environment["NCCL_CTA_POLICY"] == "2"
    assert record.host == read(torch.device("cpu")).host
    for each in (record, *gpus(2, r1={"nccl": None}), CPU):
        assert Capabilities.from_json(each.to_json()) == each


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(GPU, device="xpu"), "cpu or cuda"),
        (lambda: replace(GPU, reach={"u": "wifi"}), "wifi"),
        (lambda: replace(GPU, nccl=("2", "28")), "integers"),
        (lambda: choose(cpus(), "ucc"), "one of auto, gloo, nccl, nccl-ce, copy-engine, host-staged, got 'ucc'"),
        (lambda: choose([], "auto"), "record of every rank"),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
