"""All ranks hear what each of them has posted, and a rank asks the store for one key: rank 0 collects and answers.

Were every rank to read the notes of all, the store would be asked for W * W keys.
"""

from collections.abc import Callable

from fsranks.job_store import JobStore

_LAST_WORD_S = 0.5  # beyond the time limit, for a store that has answered just now


def hear(
    store: JobStore, prefix: str, rank: int, world_size: int, answer: Callable[[dict[int, str]], str], timeout_s: float
) -> str:
    """One rank's `answer` to the notes that the ranks have posted under `prefix` and their rank: the same on all ranks.

    `answer` gets the notes by rank, without those that are not there in time. Rank 0 gives it. If rank 0 is late, the
    first rank whose time limit ends gives it, and the first answer counts for all.
    """
    keys = {f"{prefix}{each}": each for each in range(world_size)}
    if rank == 0:
        notes = store.wait(keys, timeout_s)
    else:
        given = store.wait([f"{prefix}answer"], timeout_s)
        if given:
            return given[f"{prefix}answer"]
        notes = store.wait(keys, 0)  # rank 0 is lost, or it came later and waits for another rank
    text = answer({keys[key]: note for key, note in notes.items()})
    return store.decide(f"{prefix}answer", text, _LAST_WORD_S)
