"""Which part of a batch each module reads: learned at its first forward, or told by the user."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fscomm import features
from fscomm.features import KJT, Path

Reader = Callable[[Any], Any]


class Finder:
    """For each module, where the next batch has its features.

    `names`: of the served modules; `given`: functions from a batch to the KJT of a module, by name.
    """

    def __init__(self, names: Sequence[str], given: Mapping[str, Reader], problem: Callable[[Any], str | None]) -> None:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(
                f"features= names {', '.join(unknown)}, but the modules served are {', '.join(names) or 'none'}"
            )
        self._names = names
        self._given = [given.get(name) for name in names]
        self._paths: list[Path | None] = [None] * len(names)
        self._problem = problem
        self.lost: dict[int, str] = {}

    @property
    def explicit(self) -> frozenset[int]:
        """Modules whose features the user names."""
        return frozenset(m for m, reader in enumerate(self._given) if reader is not None)

    def read(self, batch: Any) -> list[KJT | None]:
        """[M] the features of each module in `batch`; None where unknown or not such that they can be prefetched."""
        return [self._read(m, batch) for m in range(len(self._names))]

    def learn(self, m: int, batch: Any, kjt: Any) -> None:
        """Module m got `kjt` while the user holds `batch`."""
        if self._given[m] is not None or self._paths[m] is not None or m in self.lost:
            return
        if self._problem(kjt) is not None:
            self.lost[m] = str(self._problem(kjt))
            return
        self._paths[m] = features.find(batch, kjt)
        if self._paths[m] is None:
            tried = [str(path) for path, _ in features.walk(batch)]
            self.lost[m] = (
                f"its features were not found in the batch ({type(batch).__name__}): they are none of "
                f"{', '.join(tried) or 'its attributes, as it holds no KeyedJaggedTensor'}. Pass "
                f"features={{{self._names[m]!r}: function from batch to KeyedJaggedTensor}}"
            )

    def _read(self, m: int, batch: Any) -> KJT | None:
        reader, path = self._given[m], self._paths[m]
        if reader is None and path is None:
            return None
        try:
            kjt = reader(batch) if reader is not None else features.read(batch, path)  # type: ignore[arg-type]
        except ValueError as error:
            if reader is not None:
                raise
            self.lost[m] = str(error)
            return None
        why = self._problem(kjt)
        if why is not None:
            self.lost[m] = why
            return None
        return kjt
