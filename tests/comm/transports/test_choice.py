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


def gpus(size=4, *, how="nvlink", **changes):
    """`size` ranks of one host, each with its GPU; `changes` by rank as r1={"nccl": ...}."""
    uuids = [f"gpu-{rank}" for rank in range(size)]
    alike = [replace(GPU, index=r, uuid=uuids[r], reach={u: how for u in uuids if u != uuids[r]}) for r in range(size)]
    return [replace(record, **changes.get(f"r{rank}", {})) for rank, record in enumerate(alike)]


def cpus(size=3, **changes):
    return [replace(CPU, **changes.get(f"r{rank}", {})) for rank in range(size)]


CUDA_12 = {"cuda_bindings": "12.9.0", "driver": 12080}
EVERYTHING = {"nccl", "nccl-ce", "copy-engine", "host-staged"}
ABLE = [
    # the ranks, what all of them can use
    ("gpus alike", gpus(), {"nccl", "nccl-ce", "copy-engine", "host-staged"}),
    ("cpus alike", cpus(), {"gloo", "copy-engine", "host-staged"}),
    ("cpus apart", cpus(r1={"host": "b"}), {"gloo", "host-staged"}),
    ("gpus apart", gpus(r3={"host": "b"}), {"nccl", "host-staged"}),
    (
        "gpus apart, new nccl",
        [replace(record, nccl=(2, 30, 7)) for record in gpus(r3={"host": "b"})],
        {"nccl", "nccl-ce", "host-staged"},
    ),
    ("one older nccl", gpus(r3={"nccl": (2, 27, 5)}), {"copy-engine", "host-staged"}),
    ("older nccl", [replace(record, nccl=(2, 27, 5)) for record in gpus()], {"nccl", "copy-engine", "host-staged"}),
    ("one newer nccl", gpus(r0={"nccl": (2, 30, 7)}), {"copy-engine", "host-staged"}),
    ("one without nccl", gpus(r1={"nccl": None}), {"copy-engine", "host-staged"}),
    ("one without bindings", gpus(r2={"cuda_bindings": None}), {"nccl", "host-staged"}),
    ("one with bindings that are newer than the driver", gpus(r2={"driver": 12090}), {"nccl", "host-staged"}),
    (
        "bindings of the older driver",
        gpus(2, r0=CUDA_12, r1=CUDA_12),
        {"nccl", "nccl-ce", "copy-engine", "host-staged"},
    ),
    ("bindings that are older than the driver", gpus(r2={"cuda_bindings": "12.9.0"}), EVERYTHING),
    ("over pcie", gpus(how="peer"), {"nccl", "host-staged"}),
    ("one pair over pcie", gpus(r0={"reach": {"gpu-3": "peer"}}), {"nccl", "host-staged"}),
    ("unreachable", gpus(how="none"), {"nccl", "host-staged"}),
    ("one pair unreachable", gpus(r0={"reach": {"gpu-3": "none"}}), {"nccl", "host-staged"}),
    (
        "each sees its own device only",
        [replace(record, reach={}, index=0) for record in gpus()],
        {"nccl", "nccl-ce", "host-staged"},
    ),
    ("one hardware queue", gpus(r1={"environment": {MASK: "1"}}), {"nccl", "nccl-ce", "host-staged"}),
    ("as many hardware queues as by default", gpus(r1={"environment": {}}), {"nccl", "nccl-ce", "host-staged"}),
    (
        "other cta policy",
        gpus(r0={"environment": {MASK: "32", "NCCL_CTA_POLICY": "1"}}),
        {"nccl", "copy-engine", "host-staged"},
    ),
    (
        "zero cta policy",
        gpus(r0={"environment": {MASK: "32", "NCCL_CTA_POLICY": "2"}}),
        {"nccl", "nccl-ce", "copy-engine", "host-staged"},
    ),
    (
        "nccl without p2p",
        gpus(r0={"environment": {MASK: "32", "NCCL_P2P_DISABLE": "1"}}),
        {"nccl", "copy-engine", "host-staged"},
    ),
    (
        "nccl over sockets",
        gpus(r0={"environment": {MASK: "32", "NCCL_P2P_LEVEL": "LOC"}}),
        {"nccl", "copy-engine", "host-staged"},
    ),
    (
        "nccl without vmm",
        gpus(r0={"environment": {MASK: "32", "NCCL_CUMEM_ENABLE": "0"}}),
        {"nccl", "copy-engine", "host-staged"},
    ),
    (
        "no windows",
        gpus(r0={"environment": {MASK: "32", "NCCL_WIN_ENABLE": "0"}}),
        {"nccl", "copy-engine", "host-staged"},
    ),
    ("blocking launches", gpus(r0={"environment": {MASK: "32", "CUDA_LAUNCH_BLOCKING": "1"}}), {"nccl"}),
    ("nothing pinned", gpus(r0={"pinned": False}), {"nccl", "nccl-ce", "copy-engine"}),
    ("two on one gpu", gpus(2, r1={"uuid": "gpu-0"}), {"copy-engine", "host-staged"}),
    ("tables on both", [CPU, *gpus(2)], set()),
    ("bare gpus", [Capabilities(device="cuda", host="a", torch="2.11.0")] * 2, set()),
]


@pytest.mark.parametrize(("records", "able"), [case[1:] for case in ABLE], ids=[case[0] for case in ABLE])
@pytest.mark.parametrize("asked", NAMES)
def test_by_name_whatever_all_ranks_can_use(records, able, asked):
    choice = choose(records, asked)
    assert choice.name == (asked if asked in able else None)
    assert set(choice.why_not) == set(NAMES) - {choice.name}
    assert all(choice.why_not.values())


@pytest.mark.parametrize(("records", "able"), [case[1:] for case in ABLE], ids=[case[0] for case in ABLE])
def test_auto_uses_only_what_is_proven(records, able):
    choice = choose(records, "auto")
    assert choice.name == ("gloo" if "gloo" in able else None)
    for name in NAMES:
        assert (f"transport={name!r}" in choice.why_not.get(name, "")) == (name in able - {"gloo"})
        assert ("shown to be exact" in choice.why_not.get(name, "")) == (name in able - {"gloo"})


@pytest.mark.parametrize(
    ("records", "name", "words"),
    [
        (gpus(r3={"nccl": (2, 27, 5)}), "nccl-ce", "rank 3 has NCCL 2.27.5, needs 2.28"),
        (gpus(r1={"nccl": None}, r2={"nccl": None}), "nccl-ce", "ranks 1, 2 have no NCCL, needs 2.28"),
        (gpus(r3={"nccl": (2, 28, 9)}), "nccl", "ranks 0, 1, 2 have NCCL 2.29.7, rank 3 has NCCL 2.28.9"),
        (gpus(r3={"host": "b"}), "nccl-ce", "ranks 0, 1, 2, 3 have NCCL 2.29.7, needs 2.30.7"),
        (gpus(r3={"host": "b"}), "copy-engine", "one host, ranks 0, 1, 2 and rank 3 are apart"),
        (cpus(r1={"host": "b"}), "copy-engine", "one host, ranks 0, 2 and rank 1 are apart"),
        (cpus(), "nccl", "on the CPU"),
        (gpus(), "gloo", "host-staged"),
        (gpus(r2={"cuda_bindings": None}), "copy-engine", "rank 2 has no cuda.bindings"),
        (gpus(r2={"cuda_bindings": None}), "copy-engine", "pip install cuda-bindings"),
        (gpus(r2={"cuda_bindings": None}), "nccl-ce", "rank 2 has no cuda.bindings"),
        (
            gpus(r2={"driver": 12080}),
            "copy-engine",
            "rank 2 has a driver of CUDA 12.8 and cuda-bindings 13.5.0, which needs the driver of its CUDA",
        ),
        (gpus(3, how="peer"), "copy-engine", "no NVLink between ranks 0 and 1, 0 and 2, 1 and 2"),
        (
            [replace(record, reach={}) for record in gpus(2)],
            "copy-engine",
            "no view of each other's devices: ranks 0 and 1, so NVLink between them cannot be seen",
        ),
        (gpus(r1={"environment": {MASK: "1"}}), "copy-engine", f"rank 1 has {MASK}=1: three rings"),
        (gpus(r1={"environment": {}}), "copy-engine", f"rank 1 has {MASK}=8 (not set): three rings"),
        (gpus(3, how="peer"), "nccl-ce", "no NVLink between ranks 0 and 1, 0 and 2, 1 and 2"),
        (gpus(2, r1={"uuid": "gpu-0"}), "nccl", "ranks 0, 1 share one"),
        ([CPU, *gpus(2)], "gloo", "rank 0 has tables on cpu, ranks 1, 2 have tables on cuda"),
    ],
)
def test_reasons_name_ranks(records, name, words):
    assert words in choose(records, name).why_not[name]


def test_all_reasons_are_given_at_once():
    records = gpus(r0={"cuda_bindings": None}, r1={"environment": {MASK: "1"}})
    why = choose(records, "copy-engine").why_not["copy-engine"]
    assert "rank 0 has no cuda.bindings" in why
    assert f"rank 1 has {MASK}=1" in why


def test_the_best_comes_first_once_it_is_proven(monkeypatch):
    monkeypatch.setattr(choosing, "PROVEN", NAMES)
    assert choose(cpus(), "auto").name == "gloo"
    assert choose(gpus(), "auto").name == "copy-engine"
    assert choose(gpus(r0={"environment": {MASK: "8"}}), "auto").name == "nccl-ce"
    assert choose(gpus(how="none"), "auto").name == "host-staged"
    assert choose(gpus(how="none", r0={"pinned": False}), "auto").name == "nccl"
    assert choose(gpus(), "auto").why_not["nccl"] == (
        "these ranks can use it; after copy-engine, as its kernels take multiprocessors from compute"
    )


def test_one_line_says_it_all():
    line = choose(gpus(r3={"nccl": (2, 27, 5)}, r1={"environment": {MASK: "1"}}), "nccl-ce").line()
    assert "\n" not in line
    assert line.startswith("there is no transport for these rows (transport='nccl-ce'). not nccl-ce: rank 3 has NCCL")
    assert "host-staged: these ranks can use it when asked for transport='host-staged'" in line
    assert choose(cpus(), "auto").line().startswith("rows travel by gloo (transport='auto'). not nccl: ")


def test_warnings_name_ranks():
    assert choose(gpus(), "nccl").warnings == ()
    records = gpus(r1={"environment": {MASK: "1"}}, r2={"torch": "2.11.0"})
    version, setting, queues = choose(records, "nccl").warnings
    assert version == "the ranks differ in torch: ranks 0, 1, 3 have 2.13.0, rank 2 has 2.11.0"
    assert setting == f"the ranks differ in {MASK}: ranks 0, 2, 3 have 32, rank 1 has 1"
    assert queues.startswith(f"rank 1 has {MASK}=1: with one hardware queue")
    (driver,) = choose(gpus(r2={"driver": 12040, "cuda_bindings": "12.9.0"}), "copy-engine").warnings
    assert driver.startswith("rank 2 has an older driver than CUDA 12.8")
    assert "Warning: the ranks differ in torch" in choose(records, "nccl").line()


def test_the_only_rank_has_nothing_to_lack():
    bare = Capabilities(device="cuda", host="a", torch="2.11.0")
    assert choose([bare], "nccl").name == "nccl"
    assert choose([bare], "auto").name == "copy-engine"
    assert choose([CPU], "auto").name == "gloo"


def test_what_is_no_transport_is_refused():
    with pytest.raises(ValueError, match="one of auto, gloo, nccl, nccl-ce, copy-engine, host-staged, got 'ucc'"):
        choose(cpus(), "ucc")
    with pytest.raises(ValueError, match="record of every rank"):
        choose([], "auto")


@pytest.mark.parametrize("record", [*gpus(2, r1={"nccl": None}), CPU], ids=["gpu", "without nccl", "cpu"])
def test_records_travel_as_text(record):
    assert Capabilities.from_json(record.to_json()) == record


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_this_machine_can_always_be_read(device, monkeypatch):
    monkeypatch.setenv("NCCL_CTA_POLICY", "2")
    record = read(torch.device(device))
    assert record.device == device
    assert record.environment["NCCL_CTA_POLICY"] == "2"
    assert record.host == read(torch.device("cpu")).host
    assert record.torch == torch.__version__
    assert Capabilities.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"device": "xpu"}, "cpu or cuda"), ({"reach": {"u": "wifi"}}, "wifi"), ({"nccl": ("2", "28")}, "integers")],
)
def test_nonsense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(GPU, **wrong)
