"""All ranks compare what they were given, before any group is made.

Each rank posts what it was given into the job's store; rank 0 compares and posts the verdict (`JobStore.hear`). A rank
that never comes, or that failed before, is named on all others.
"""

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from fsranks.errors import MismatchError, PeerError, describe, name_ranks, shown
from fsranks.job_store import DIAGNOSIS_S, JobStore, StoreLost
from fsranks.rank_context import RankContext

Parts = Mapping[str, Callable[[], Mapping[str, str]]]
"""Item -> what gives name -> description of all that it is made of."""
_PARTS_SHOWN = 3


class Meeting:
    """All ranks of `context.group` compare what they were given.

    Use as a context manager around a constructor: an error inside is posted, so that the other ranks raise at once
    instead of waiting. Every rank must open its meetings in the same order. With one rank or no group it does nothing.

        with Meeting(context, what="FreeScaleDataLoader", timeout_s=300) as meeting:
            ...                       # anything that can fail on this rank alone
            meeting.agree({"seed": "7", "schema": digest})
    """

    def __init__(self, context: RankContext, *, what: str, timeout_s: float) -> None:
        self._context = context
        self._what = what
        self._timeout_s = timeout_s
        self._over = False
        network = context.reach()
        self._store: JobStore | None = None if network is None else network.store("meeting", timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._over and self._store is not None:
            self._over = True
            try:
                self._tell_failure(self._store, error)
            except StoreLost as lost:
                error.add_note(f"and the other ranks could not be told: {lost}")

    def agree(self, fingerprint: Mapping[str, str], *, tell: str = "", parts: Parts | None = None) -> list[str]:
        """Block until all ranks are here, at most `timeout_s`; all of them return, or all of them raise.

        Returns what each rank had to `tell`, by rank: that may differ. parts: of items that are only a digest, what
        they are made of; the message says which of these differ.

        Raises:
            MismatchError: names the ranks and items that differ, with both values.
            PeerError: names the ranks that did not come, or the one that failed and its error.
        """
        if self._store is None:
            return [tell]
        self._over = True
        try:
            verdict = self._meet(self._store, {"items": dict(fingerprint), "told": tell}, parts or {})
        except StoreLost as lost:
            raise PeerError(f"{self._what}: {lost}") from lost
        if verdict["kind"] == "mismatch":
            raise MismatchError(f"{self._what}: {verdict['text']}")
        if verdict["kind"] == "peer":
            raise PeerError(f"{self._what}: {verdict['text']}")
        return verdict["told"]

    def _tell_failure(self, store: JobStore, error: BaseException) -> None:
        rank, world_size = self._context.rank, self._context.world_size
        mine = {"of_peer": str(error)} if isinstance(error, PeerError) else {"error": describe(error)}
        if rank == 0:  # the others wait for its verdict
            store.decide("answer", self._judge({0: json.dumps(mine)}), self._timeout_s)
        else:
            store.post(str(rank), json.dumps(mine), self._timeout_s)
        if not isinstance(error, PeerError):  # that one all ranks raise, once all that live have read why
            store.part(rank, range(world_size), DIAGNOSIS_S)

    def _meet(self, store: JobStore, mine: dict[str, Any], parts: Parts) -> dict[str, Any]:
        rank, world_size = self._context.rank, self._context.world_size
        store.post(str(rank), json.dumps(mine), self._timeout_s)
        verdict = json.loads(store.hear("", rank, world_size, self._judge, self._timeout_s))
        if asked := [item for item in verdict.get("items", ()) if item in parts]:
            store.post(f"parts/{rank}", json.dumps(parts[asked[0]]()), self._timeout_s)
            verdict["text"] += store.hear("parts/", rank, world_size, _different_parts, self._timeout_s)
        if verdict["kind"] != "same":
            store.part(rank, verdict["present"], DIAGNOSIS_S)
        return verdict

    def _judge(self, notes: dict[int, str]) -> str:
        given = {rank: json.loads(note) for rank, note in notes.items()}
        return json.dumps({**self._verdict(given), "present": list(given)})

    def _verdict(self, given: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """What the posted notes amount to; rank 0's items are the reference."""
        world_size = self._context.world_size
        failed = [f"rank {rank} failed: {note['error']}" for rank, note in sorted(given.items()) if "error" in note]
        victims = {note["of_peer"]: None for note in given.values() if "of_peer" in note}
        if failed or victims:
            return {"kind": "peer", "text": "; ".join(failed or victims)}
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
        text = f"ranks were not given the same job. {text}. Pass the same arguments and files to every rank"
        first = given[0]["items"]
        items = [item for item in first if any(note["items"].get(item) != first[item] for note in given.values())]
        return {"kind": "mismatch", "text": text, "items": items}


def gather(context: RankContext, text: str, *, what: str, timeout_s: float) -> list[str]:
    """The texts of all ranks of `context`, in their order; blocks until they are there. Every rank calls it as often.

    Raises:
        PeerError: names the ranks that did not come within `timeout_s`.
    """
    network = context.reach()
    if network is None:
        return [text]
    store = network.store("gather", timeout_s)
    store.post(str(context.rank), text, timeout_s)
    notes = json.loads(store.hear("", context.rank, context.world_size, json.dumps, timeout_s))
    if missing := [rank for rank in range(context.world_size) if str(rank) not in notes]:
        store.part(context.rank, map(int, notes), DIAGNOSIS_S)
        raise PeerError(f"{what}: {name_ranks(missing)} did not come within {timeout_s:g} s")
    return [notes[str(rank)] for rank in range(context.world_size)]


def _different_parts(notes: dict[int, str]) -> str:
    """The first of them in words, for the end of a message."""
    given: dict[int, dict[str, str]] = {rank: json.loads(note) for rank, note in notes.items()}
    names = sorted({name for parts in given.values() for name in parts})
    found = [name for name in names if len({parts.get(name) for parts in given.values()}) > 1]
    few = {rank: {name: parts[name] for name in found[:_PARTS_SHOWN] if name in parts} for rank, parts in given.items()}
    more = f"; and {len(found) - _PARTS_SHOWN} more" if len(found) > _PARTS_SHOWN else ""
    return f". Not the same: {differences(few)}{more}" if found else ""


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
        mine = reference.get(item, "(absent)")
        has = shown(mine, next(iter(values)))
        others = ", ".join(f"{name_ranks(ranks)} {shown(value, mine)}" for value, ranks in values.items())
        parts.append(f"{item}: rank {first} has {has}, {others}")
    return "; ".join(parts)
