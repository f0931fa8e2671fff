"""Keys of joined tables: must not be null, must be unique."""

import numpy as np

from fsdata.decode.decoded_rows import DecodedRows
from fsdata.errors import Faults
from fsdata.schema import Field


def keyed_rows(decoded: DecodedRows, on: str) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [n], positions of rows that are not dropped and have a key; int64 [n], their keys).

    Raises:
        DataError: a null key. Where faults are noted, its row is omitted.
    """
    alive = decoded.alive
    keys, null = decoded.keys[Field(on, "join_key")]
    lost = null[alive]
    if lost.any():
        what, todo = f"the key {on!r} is null and can never match", "; filter such rows out"
        decoded.faults.found("key", on, decoded.rows[alive[lost]], what, todo=todo)
    return alive[~lost], keys[alive[~lost]]


def check_unique(keys: np.ndarray, faults: Faults, on: str, table: str) -> None:
    """Check that no key is repeated: a row can match one row only.

    keys: int64 [n], ascending, of the whole table. table: end of the message, the requirement.

    Raises:
        DataError: a key of two rows.
    """
    twice = np.unique(keys[1:][keys[1:] == keys[:-1]])
    if len(twice):
        some = ", ".join(str(key) for key in twice[:5].tolist()) + (", ..." if len(twice) > 5 else "")
        what = f"{len(twice)} values of the key {on!r} are in more than one row ({some})"
        faults.found("key", on, None, what, todo=f"; {table}")
