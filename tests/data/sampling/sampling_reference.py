"""What `Sequence(sample=...)` makes of a row, in plain Python, from its docs; and files of rows to try it on."""

import math
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from data_kit import write

from fsdata import Schema, Sequence

LONGEST = 60
MAX_LENGTH = 40
FIELDS = ("item", "price", "watched", "next", "tags")


def uih(**options: Any) -> Sequence:
    roles: dict[str, Any] = {"floats": ("price",), "labels": ("watched",), "id_labels": ("next",), "nested": ("tags",)}
    return Sequence("uih", ("item",), **roles, **{"max_length": MAX_LENGTH, **options})


def schema(**options: Any) -> Schema:
    return Schema(sequences=(uih(**options),), context=("row",), time="at")


def splitmix(state: int) -> Iterator[int]:
    """The outputs of SplitMix64."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        yield mixed ^ (mixed >> 31)


def finalized(value: int) -> int:
    return next(splitmix((value - 0x9E3779B97F4A7C15) % 2**64))


def key_of(place: tuple[str, int, int], *, seed: int, epoch: int, sequence: str) -> int:
    """place: digest of the file, row group, row in the row group."""
    file, group, row = place
    digest = blake2b(f"{seed} {epoch} {file} {sequence}".encode(), digest_size=8).digest()
    of_group = finalized((int.from_bytes(digest, "little") + group * 0x9E3779B97F4A7C15) % 2**64)
    return finalized((of_group + row * 0x9E3779B97F4A7C15) % 2**64)


def kept(key: int, length: int, sequence: Sequence) -> list[int]:
    """The positions of the events that stay, of a list of `length` events after truncation."""
    sample, most = sequence.sample, sequence.max_length
    assert sample is not None
    assert most is not None
    draws, short = splitmix(key), math.floor(most ** (sample.alpha / 2))
    first = next(draws) / 2**64
    if length <= short or first < most**sample.alpha / length**2:
        return list(range(length))
    if sample.select == "newest":
        return list(range(length))[-short:] if sequence.keep == "last" else list(range(short))
    halves = (half for draw in draws for half in (draw % 2**32, draw >> 32))
    positions: list[int] = []
    for position in range(length):
        left = length - position
        if len(positions) < short and next(halves) * left // 2**32 < short - len(positions):
            positions.append(position)
    return positions


def sampled(
    row: dict[str, list[Any]], place: tuple[str, int, int], sequence: Sequence, *, seed: int = 0, epoch: int = 0
) -> dict[str, list[Any]]:
    """The lists of a row as its sample has them. row: field -> the whole list."""
    key = key_of(place, seed=seed, epoch=epoch, sequence=sequence.name)
    length = len(next(iter(row.values())))
    most = length if sequence.max_length is None else min(length, sequence.max_length)
    begin = length - most if sequence.keep == "last" else 0
    positions = kept(key, most, sequence)
    return {name: [values[begin + position] for position in positions] for name, values in row.items()}


def digest_of(path: Path) -> str:
    """Of the footer, with its length and the magic."""
    data = path.read_bytes()
    return blake2b(data[-8 - int.from_bytes(data[-8:-4], "little") :], digest_size=16).hexdigest()


class Rows:
    """Rows with aligned lists, numbered over all files. lists: by row; places: see `key_of`."""

    def __init__(self, folder: Path, *, files: int = 2, rows: int = 40, group: int = 7, longest: int = LONGEST) -> None:
        random = np.random.default_rng(rows + longest)
        self.lists: dict[int, dict[str, list[Any]]] = {}
        self.places: dict[int, tuple[str, int, int]] = {}
        for file in range(files):
            numbers = list(range(file * rows, (file + 1) * rows))
            columns: dict[str, list[Any]] = {name: [] for name in FIELDS}
            for number in numbers:
                length = int(random.integers(0, longest + 1))
                self.lists[number] = {
                    "item": [number * 1000 + event for event in range(length)],
                    "price": [event + 0.5 for event in range(length)],
                    "watched": [number + event / 4 for event in range(length)],
                    "next": [event + 1 for event in range(length)],
                    "tags": [[event * 10 + tag for tag in range((event + number) % 3)] for event in range(length)],
                }
                for name in FIELDS:
                    columns[name].append(self.lists[number][name])
            kinds = {"item": pa.int64(), "price": pa.float32(), "watched": pa.float64(), "next": pa.int32()}
            arrays = {name: pa.array(columns[name], pa.list_(kind)) for name, kind in kinds.items()}
            arrays["tags"] = pa.array(columns["tags"], pa.list_(pa.list_(pa.int64())))
            arrays["row"] = pa.array(numbers)
            arrays["at"] = pa.array([number % rows * files + file for number in numbers])
            path = write(folder / f"part-{file}.parquet", pa.table(arrays), group=group)
            digest = digest_of(path)
            self.places |= {number: (digest, *divmod(number - file * rows, group)) for number in numbers}

    def expected(self, sequence: Sequence, *, seed: int = 0, epoch: int = 0) -> dict[int, dict[str, list[Any]]]:
        """The lists of every sample, by row."""
        return {
            row: sampled(lists, self.places[row], sequence, seed=seed, epoch=epoch) for row, lists in self.lists.items()
        }


def by_row(samples: list[dict[str, Any]]) -> dict[int, dict[str, list[Any]]]:
    """The lists of samples, see `data_kit.as_python`; no row may be there twice."""
    found = {sample["row"]: {name: sample[name] for name in FIELDS} for sample in samples}
    assert len(found) == len(samples)
    return found
