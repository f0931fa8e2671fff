"""Which rank is the reason that an exchange failed: from what the ranks wrote down, in words."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fsranks.errors import name_ranks

_REMEDY = "Look at the log of that rank; if it was only busy (evaluation, checkpoint), raise timeout_s"


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank whose exchange failed tells the others.

    Attributes:
        reason: why it gave up the group; empty if it knows no more than that the exchange failed.
        waited_s: how long it had waited in the exchange.
        number: how many exchanges it had made before, and before_s: how long it had waited in the last of those. Where
            a rank comes just before the limit, the exchange ends on some ranks, and the next one fails there.
    """

    reason: str
    waited_s: float
    number: int = 0
    before_s: float = 0.0


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

    1. ranks gave a reason: their reasons;
    2. ranks wrote nothing, and the process of one of them has ended (the others may only wait for that rank elsewhere);
    3. ranks wrote nothing, and are not known to run: dead or stopped;
    4. ranks wrote nothing, and run: busy or blocked;
    5. all wrote, some waited to the limit and some less than half of it: those came too late;
    6. the connections broke.

    notes: by rank, `rank`'s own among them. limit_s: of an exchange. gone, active: ranks of this machine whose process
    has ended, and those whose process runs and is not stopped.
    """
    if told := [f"rank {peer} {note.reason}" for peer, note in notes.items() if peer != rank and note.reason]:
        return "; ".join(told)
    waited_s = notes[rank].waited_s
    missing = [peer for peer in range(world_size) if peer not in notes]
    if ended := [peer for peer in missing if peer in gone]:
        return f"the process of {name_ranks(ended)} has ended. Look at the log of that rank"
    within = f"did not answer within {max(waited_s, 0.1):.1f} s"
    if silent := [peer for peer in missing if peer not in active]:
        return f"{name_ranks(silent)} {within}: dead or stopped. {_REMEDY}"
    if missing:
        return f"{name_ranks(missing)} {within}: busy or blocked, not stopped. {_REMEDY}"
    first = min(note.number for note in notes.values())
    waited = {peer: note.waited_s if note.number == first else note.before_s for peer, note in sorted(notes.items())}
    longest = max(waited.values())
    late = [peer for peer, of_peer in waited.items() if of_peer < limit_s / 2]
    if longest >= 0.9 * limit_s and late:
        return f"{name_ranks(late)} came after the others had waited {longest:.1f} s. {_REMEDY}"
    return "the connections broke although all ranks are alive"
