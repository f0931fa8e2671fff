"""What several processes of a machine need done once: one does it, the others wait, and nobody waits for ever."""

import multiprocessing
import tempfile
import threading
import uuid

import pytest
from patience import PATIENCE_S

from fsranks.machine import one_at_a_time as module
from fsranks.machine.one_at_a_time import is_busy, one_at_a_time


@pytest.fixture
def name():
    return str(uuid.uuid4())


def stay(name, pipe):
    with one_at_a_time(name):
        pipe.send("inside")
        pipe.recv()


def test_no_file_stays(name, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with one_at_a_time(name):
        assert is_busy(name)
        assert not is_busy(name + "another")
    assert not is_busy(name)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_process_that_is_killed_is_no_longer_inside(name):
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=stay, args=(name, there), daemon=True)
    process.start()
    assert here.poll(PATIENCE_S)
    assert is_busy(name)
    process.kill()
    process.join()
    assert not is_busy(name)


def test_the_next_one_enters_when_the_first_has_left(name, monkeypatch):
    order, waits = [], threading.Event()
    monkeypatch.setattr(module.time, "sleep", lambda seconds: waits.set())

    def enter():
        with one_at_a_time(name):
            order.append("second" if is_busy(name) else "second, unseen")

    with one_at_a_time(name):
        thread = threading.Thread(target=enter)
        thread.start()
        assert waits.wait(PATIENCE_S)
        order.append("first")
    thread.join(PATIENCE_S)
    assert order == ["first", "second"]


def test_patience_ends(name, monkeypatch):
    """The work is done twice then."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0)
    with one_at_a_time(name), one_at_a_time(name):
        assert is_busy(name)


def test_nothing_waits_where_no_file_can_be_made(name, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with one_at_a_time(name), one_at_a_time(name):
        assert not is_busy(name)
