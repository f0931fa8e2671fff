"""Which part of a batch each module reads: learned at its first forward, or told by the user."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fscomm.loop import kjt_paths
from fscomm.loop.kjt_paths import KJT, Path

Reader = Callable[[Any], Any]


class FeatureFinder:
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
        self._lost: list[str | None] = [None] * len(names)

    @property
    def explicit(self) -> frozenset[int]:
        """Modules whose features the user names."""
        return frozenset(m for m, reader in enumerate(self._given) if reader is not None)

    def read(self, batch: Any) -> tuple[list[KJT | None], list[str | None]]:
        """[M] the features of each module in `batch`, and why there are none; neither before a module was seen."""
        found = [self._read(m, batch) for m in range(len(self._names))]
        return [kjt for kjt, _ in found], [why for _, why in found]

    def learn(self, m: int, batch: Any, kjt: Any) -> str | None:
        """Module m got `kjt` while the user holds `batch`. Returns why its features will never be found, if so."""
        if self._given[m] is None and self._paths[m] is None and self._lost[m] is None:
            self._lost[m] = self._problem(kjt)
            if self._lost[m] is None:
                self._paths[m] = kjt_paths.find(batch, kjt)
                if self._paths[m] is None:
                    self._lost[m] = self._not_found(m, batch)
        return self._lost[m]

    def _read(self, m: int, batch: Any) -> tuple[KJT | None, str | None]:
        reader, path = self._given[m], self._paths[m]
        if reader is not None:
            kjt = reader(batch)
        elif path is None:
            return None, self._lost[m]
        else:
            try:
                kjt = kjt_paths.read(batch, path)
            except ValueError as error:
                return None, str(error)
        why = self._problem(kjt)
        return (None, why) if why is not None else (kjt, None)

    def _not_found(self, m: int, batch: Any) -> str:
        tried = ", ".join(str(path) for path, _ in kjt_paths.walk(batch))
        return (
            f"its features were not found in the batch ({type(batch).__name__}): they are none of "
            f"{tried or 'its attributes, as it holds no KeyedJaggedTensor'}. Pass "
            f"features={{{self._names[m]!r}: function from batch to KeyedJaggedTensor}}"
        )
