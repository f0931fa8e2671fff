"""Which rank this is, and whether all ranks were given the same job.

Ranks meet before any group is made, over the store of the process group: each posts what it was given, rank 0 compares
and posts the verdict. A rank whose time limit ends first gives the verdict itself; the first one counts for all. A rank
that never comes, or that failed before, is named on all others.
"""

import collections
import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist
from torch.distributed import distributed_c10d

from fsranks.errors import MismatchError, PeerError
from fsranks.notice_board import NoticeBoard, StoreLost, connect

_SHOWN = 120
_LAST_WORD_S = 0.5  # beyond the time limit, for a store that has answered just now
_boards: collections.Counter[str] = collections.Counter()
_connections: weakref.WeakKeyDictionary[dist.Store, dist.Store] = weakref.WeakKeyDictionary()  # by default store


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """This process among those that share the data.

    Attributes:
        rank, world_size: rank < world_size.
        group: the process group whose ranks these are, or None where there is none (one rank, explicit arguments,
            torchrun without init_process_group).
    """

    rank: int
    world_size: int
    group: dist.ProcessGroup | None = None


def resolve(
    rank: int | None = None, world_size: int | None = None, process_group: dist.ProcessGroup | None = None
) -> RankContext:
    """Rank and world size from the arguments, else torch.distributed, else torchrun's environment, else 0 of 1.

    With `process_group` (say, the data-parallel ranks of a larger job) the ranks are those of the group. Explicit
    arguments that are exactly those of torch.distributed keep its group, so that ranks can still agree over it.

    Raises:
        ValueError: one of the two without the other, a rank outside 0..world_size-1, arguments that contradict
            `process_group`, or a process that is not in it.
    """
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ValueError(f"{given} was given without {missing}: pass both, or neither to use torch.distributed's")
    found = _of_group(process_group)
    if rank is None or world_size is None:
        return found or _of_environment() or RankContext(rank=0, world_size=1)
    _check(rank, world_size, "arguments")
    if found is not None and (rank, world_size) == (found.rank, found.world_size):
        return found
    if process_group is not None and found is not None:
        raise ValueError(
            f"rank {rank} of {world_size} was given, but this process is rank {found.rank} of {found.world_size} in "
            "process_group: leave rank and world_size out"
        )
    return RankContext(rank=rank, world_size=world_size)


def _of_group(group: dist.ProcessGroup | None) -> RankContext | None:
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise ValueError("process_group was given, but torch.distributed is not initialized")
        return None
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"this process (global rank {dist.get_rank()}) is not in process_group")
    return RankContext(rank=rank, world_size=dist.get_world_size(group), group=group or dist.group.WORLD)


def _of_environment() -> RankContext | None:
    texts = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    given = {name: text for name, text in texts.items() if text is not None}
    if not given:
        return None
    if len(given) < 2:
        missing = next(name for name in texts if name not in given)
        raise ValueError(
            f"the environment has {given} but no {missing}: set both (torchrun does), or pass rank and world_size"
        )
    try:
        rank, world_size = int(given["RANK"]), int(given["WORLD_SIZE"])
    except ValueError:
        raise ValueError(f"RANK and WORLD_SIZE in the environment must be integers, got {given}") from None
    _check(rank, world_size, "environment")
    return RankContext(rank=rank, world_size=world_size)


def _check(rank: int, world_size: int, where: str) -> None:
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be an integer, got {value!r}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1} for world_size {world_size}, got {rank} ({where})")


class Meeting:
    """All ranks of `place.group` compare what they were given.

    Use as a context manager around a constructor: an error inside is posted, so that the other ranks raise at once
    instead of waiting. Every rank must open its meetings in the same order. With one rank or no group it does nothing.

        with Meeting(place, what="FreeScaleDataLoader", timeout_s=300) as meeting:
            ...                       # anything that can fail on this rank alone
            meeting.agree({"seed": "7", "schema": digest})
    """

    def __init__(self, context: RankContext, *, what: str, timeout_s: float) -> None:
        self._context = context
        self._what = what
        self._timeout_s = timeout_s
        self._board: NoticeBoard | None = None
        self._over = False
        if context.group is not None and context.world_size > 1:
            self._board = board_of(context.group, "meeting", timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._over and self._board is not None:
            self._over = True
            try:
                self._board.post(str(self._context.rank), json.dumps({"error": describe(error)}), self._timeout_s)
            except StoreLost as lost:
                error.add_note(f"and the other ranks could not be told: {lost}")

    def agree(self, fingerprint: Mapping[str, str], *, tell: str = "") -> list[str]:
        """Block until all ranks are here, at most `timeout_s`; all of them return, or all of them raise.

        Returns what each rank had to `tell`, by rank: that may differ.

        Raises:
            MismatchError: names the ranks and items that differ, with both values.
            PeerError: names the ranks that did not come, or the one that failed and its error.
        """
        if self._board is None:
            return [tell]
        self._over = True
        try:
            verdict = self._meet(self._board, {"items": dict(fingerprint), "told": tell})
        except StoreLost as lost:
            raise PeerError(f"{self._what}: {lost}") from lost
        if verdict["kind"] == "mismatch":
            raise MismatchError(f"{self._what}: {verdict['text']}")
        if verdict["kind"] == "peer":
            raise PeerError(f"{self._what}: {verdict['text']}")
        return verdict["told"]

    def _meet(self, board: NoticeBoard, mine: dict[str, Any]) -> dict[str, Any]:
        rank, ranks = self._context.rank, [str(each) for each in range(self._context.world_size)]
        board.post(str(rank), json.dumps(mine), self._timeout_s)
        if rank == 0:
            notes = board.wait(ranks, self._timeout_s)
        else:
            given = board.wait(["verdict"], self._timeout_s)
            if "verdict" in given:
                return json.loads(given["verdict"])
            notes = board.wait(ranks, 0)  # rank 0 is lost, or came later and waits for somebody else
        return json.loads(board.decide("verdict", json.dumps(self._judge(notes)), _LAST_WORD_S))

    def _judge(self, notes: dict[str, str]) -> dict[str, Any]:
        """What the posted notes amount to; rank 0's items are the reference."""
        world_size = self._context.world_size
        given: dict[int, dict[str, Any]] = {int(rank): json.loads(note) for rank, note in notes.items()}
        failed = [f"rank {rank} failed: {note['error']}" for rank, note in sorted(given.items()) if "error" in note]
        if failed:
            return {"kind": "peer", "text": "; ".join(failed)}
        missing = [rank for rank in range(world_size) if rank not in given]
        if missing:
            text = (
                f"{name_ranks(missing)} did not come within {self._timeout_s:g} s. Every rank must come here "
                "in the same order; look at the log of the missing rank"
            )
            return {"kind": "peer", "text": text}
        text = differences({rank: note["items"] for rank, note in given.items()})
        if not text:
            return {"kind": "same", "told": [given[rank]["told"] for rank in range(world_size)]}
        remedy = "Pass the same arguments and files to every rank"
        return {"kind": "mismatch", "text": f"ranks were not given the same job. {text}. {remedy}"}


def gather(context: RankContext, text: str, *, what: str, timeout_s: float) -> list[str]:
    """The texts of all ranks of `place`, in their order; blocks until they are there. All ranks call it equally often.

    Raises:
        PeerError: names the ranks that did not come within `timeout_s`.
    """
    if context.group is None or context.world_size == 1:
        return [text]
    board = board_of(context.group, "gather", timeout_s)
    board.post(str(context.rank), text, timeout_s)
    notes = board.wait(map(str, range(context.world_size)), timeout_s)
    if missing := [rank for rank in range(context.world_size) if str(rank) not in notes]:
        raise PeerError(f"{what}: {name_ranks(missing)} did not come within {timeout_s:g} s")
    return [notes[str(rank)] for rank in range(context.world_size)]


def differences(given: Mapping[int, Mapping[str, str]]) -> str:
    """In words, where the items of the ranks differ from those of the lowest rank; empty if nowhere."""
    first = min(given)
    reference = given[first]
    found: dict[str, dict[str, list[int]]] = {}
    for rank in sorted(given):
        for item in sorted({*reference, *given[rank]}):
            value = given[rank].get(item, "(absent)")
            if value != reference.get(item, "(absent)"):
                found.setdefault(item, {}).setdefault(value, []).append(rank)
    parts = []
    for item, values in found.items():
        mine = _short(reference.get(item, "(absent)"))
        others = ", ".join(f"{name_ranks(ranks)} {_short(value)}" for value, ranks in values.items())
        parts.append(f"{item}: rank {first} has {mine}, {others}")
    return "; ".join(parts)


def name_ranks(ranks: list[int]) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, 2, ... (64 in all)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")


def describe(error: BaseException) -> str:
    """An error in one line, for the other ranks."""
    return f"{type(error).__name__}: {error}"[:2000]


def board_of(group: dist.ProcessGroup, purpose: str, timeout_s: float) -> NoticeBoard:
    """The next board for `purpose` that the ranks of `group`, and no others, share: each rank asks equally often."""
    ranks = dist.get_process_group_ranks(group)
    members = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
    name = f"freescale/{members}/{purpose}"
    _boards[name] += 1
    return NoticeBoard(_connection(timeout_s), f"{name}/{_boards[name]}")


def _connection(timeout_s: float) -> dist.Store:
    """The connection that all boards of this process share: each new one may cost the host a slow name look-up."""
    store = distributed_c10d._get_default_store()
    if store not in _connections:
        _connections[store] = connect(store, timeout_s)
    return _connections[store]


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
