"""Which rank is the reason that an exchange failed: from what the ranks wrote down, in words."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fsranks.errors import name_ranks
from fsranks.messages import DIRECT_RANKS

_SLACK_S = 1.0  # that a wait may take beyond its limit on a busy machine
_REMEDY = "Look at the log of that rank; if it was only busy (evaluation, checkpoint), raise timeout_s"


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank whose exchange failed tells the others.

    Attributes:
        reason: why it gave up the group; empty if it knows no more than that the exchange failed.
        waited_s: how long it had waited in the exchange.
        number: how many exchanges it had made before, and before_s: how long it had waited in the last of those. One
            exchange may end on some ranks, and the next one fail there.
    """

    reason: str
    waited_s: float
    number: int = 0
    before_s: float = 0.0

    def explains(self, number: int) -> bool:
        """Whether the rank gave up the group without having made exchange `number`."""
        return bool(self.reason) and self.number <= number


def diagnose(
    notes: Mapping[int, Note],
    *,
    rank: int,
    world_size: int,
    limit_s: float,
    gone: Collection[int],
    active: Collection[int],
) -> str:
    """In words, why an exchange failed on `rank`, from the first of these that applies:

    1. ranks gave a reason, and left before they had made this exchange: their reasons;
    2. ranks wrote nothing, and the process of one of them has ended (the others may only wait for that rank elsewhere);
    3. no other rank wrote anything, before any limit was over: `rank` alone has lost connections;
    4. ranks wrote nothing, and are not known to run: dead or stopped;
    5. ranks wrote nothing, and run, and another one waited to the limit: busy or blocked;
    6. some waited much longer than the limit: those were stopped themselves;
    7. some waited to the limit and some less than half of it: those came too late;
    8. some finished an exchange for which they had waited to the limit, as the others: those were stopped meanwhile;
    9. one or two waited to the limit in an exchange that all others finished: nothing reached them;
    10. the connections broke.

    notes: by rank, `rank`'s own among them. limit_s: of an exchange. gone, active: ranks of this machine whose process
    has ended, and those whose process runs and is not stopped.
    """
    if left := [peer for peer, note in notes.items() if peer != rank and note.explains(notes[rank].number)]:
        return "; ".join(f"rank {peer} {notes[peer].reason}" for peer in left)
    waited_s = notes[rank].waited_s
    missing = [peer for peer in range(world_size) if peer not in notes]
    if ended := [peer for peer in missing if peer in gone]:
        return f"the process of {name_ranks(ended)} has ended. Look at the log of that rank"
    broken = max(note.waited_s for note in notes.values()) < 0.9 * limit_s  # no rank has waited to the limit
    if broken and world_size > 2 and len(missing) == world_size - 1:
        return (
            f"connections of rank {rank} broke, and no other rank has noticed: maybe they wait for a stopped rank. "
            "Look at the logs of all ranks"
        )
    within = f"did not answer within {max(waited_s, 0.1):.1f} s"
    if silent := [peer for peer in missing if peer not in active]:
        return f"{name_ranks(silent)} {within}: dead or stopped. {_REMEDY}"
    if missing and not broken:
        return f"{name_ranks(missing)} {within}: busy or blocked, not stopped. {_REMEDY}"
    stayed = {peer: note for peer, note in notes.items() if not note.reason}
    return _of_waits(stayed, world_size, limit_s) or "the connections broke although all ranks are alive"


def _of_waits(notes: Mapping[int, Note], world_size: int, limit_s: float) -> str:
    """Rules 6 to 9; empty if none applies. notes: of all ranks that have not left."""
    first = min(note.number for note in notes.values())
    on = {peer for peer, note in notes.items() if note.number > first}  # they finished the exchange that others did not
    waited = {peer: note.waited_s + note.before_s * (peer in on) for peer, note in sorted(notes.items())}
    longest = max(waited.values())
    if longest < 0.9 * limit_s:
        return ""
    waits = {peer: max(note.waited_s, note.before_s) for peer, note in notes.items()}
    if slept := overslept(waits, limit_s):
        took = f"a wait took {max(waits.values()):.1f} s there, not {limit_s:g} s"
        return f"{name_ranks(slept)} stopped for a while: {took}. {_REMEDY}"
    if late := [peer for peer, of_peer in waited.items() if of_peer < limit_s / 2]:
        return f"{name_ranks(late)} came after the others had waited {longest:.1f} s. {_REMEDY}"
    if at_last := [peer for peer in on if notes[peer].before_s >= 0.9 * limit_s]:
        return (
            f"{name_ranks(at_last)} finished an exchange when the others had given it up: stopped meanwhile. {_REMEDY}"
        )
    stuck = [peer for peer in waited if peer not in on]
    if on and len(stuck) <= 2 and world_size <= DIRECT_RANKS:  # else other ranks pass messages on
        return (
            f"an exchange that the other ranks finished did not end on {name_ranks(stuck)} within {longest:.1f} s: "
            "it was stopped, or a connection broke. Look at the log of that rank, and at the network"
        )
    return ""


def overslept(waited: Mapping[int, float], limit_s: float) -> list[int]:
    """The ranks whose wait took much longer than the limit: they were stopped themselves. waited: s, by rank."""
    return [rank for rank, of_rank in waited.items() if of_rank > 1.1 * limit_s + _SLACK_S]
