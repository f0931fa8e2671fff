"""Namespaces for benchmarks: what they make is gone afterwards, whatever ended the owner."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import until

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OWNER = """
import sys, time
from network.namespaces import Network
network = Network(2)
with network:
    print(network.bridge, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("network.namespaces")
    if reason := module.why_not():
        pytest.skip(reason)
    return module


def test_what_was_made_is_gone(namespaces: Any) -> None:
    network = namespaces.Network(2)
    with network:
        made = _existing(network)
        for rank, namespace in enumerate(network.namespaces):
            assert network.address(rank) in _output(*network.enter(rank), "ip", "-o", "addr")
            network.shape(100)
            assert "tbf" in _qdiscs(namespace)
            network.shape(None)
            assert "tbf" not in _qdiscs(namespace)
    assert len(made) == 5  # two namespaces, two links, a bridge
    assert _existing(network) == []


@pytest.mark.long
def test_an_owner_that_is_killed_leaves_nothing(namespaces: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        mark = owner.stdout.readline().strip().removeprefix("fsb")
        assert mark in "".join(_left())
        owner.kill()
    until(lambda: not any(mark in name for name in _left()), "the end of what was made")


def _existing(network: Any) -> list[str]:
    left = _left()
    return [name for name in (*network.namespaces, network.bridge, *network._links) if name in left]


def _left() -> list[str]:
    return [*_output("ip", "netns", "list").split(), *(path.name for path in Path("/sys/class/net").iterdir())]


def _qdiscs(namespace: str) -> str:
    return _output("tc", "-n", namespace, "qdisc")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
