"""Which part of a batch each module reads: learned at its first forward, or told by the user."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fscomm.loop import kjt_paths
from fscomm.loop.kjt_paths import KJT, Path
from fscomm.loop.kjt_recipes import Make, Recipe, recipe

Reader = Callable[[Any], Any]
TRIES = 3  # batches in which features are looked for before a module is given up


class FeatureFinder:
    """For each module, where the next batch has its features.

    `names`: of the served modules, once for each call; `given`: functions from a batch to the KJT of a module, by name;
    a list of them for its calls.

    Attributes:
        explicit: modules whose features the user names.
        make: gives a KJT.
    """

    def __init__(
        self,
        names: Sequence[str],
        given: Mapping[str, Reader | Sequence[Reader]],
        *,
        problem: Callable[[Any], str | None],
        make: Make,
    ) -> None:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(
                f"features= names {', '.join(unknown)}, but the modules served are "
                f"{', '.join(dict.fromkeys(names)) or 'none'}"
            )
        self._names = names
        self._found: list[Reader | Path | Recipe | None] = [None] * len(names)
        for name, readers in given.items():
            of_calls, first = [readers] if callable(readers) else list(readers), names.index(name)
            if len(of_calls) > names.count(name):
                raise ValueError(
                    f"features= has {len(of_calls)} functions for {name}, one for each call, but calls="
                    f"{names.count(name)} says how often it is called"
                )
            self._found[first : first + len(of_calls)] = of_calls
        self.explicit = frozenset(m for m, reader in enumerate(self._found) if reader is not None)
        self._problem = problem
        self.make = make
        self._lost: list[str | None] = [None] * len(names)
        self._tries = [0] * len(names)

    def read(self, batch: Any) -> tuple[list[KJT | None], list[str | None]]:
        """[M] the features of each module in `batch`, and why there are none; neither before a module was seen."""
        found = [self._read(m, batch) for m in range(len(self._names))]
        return [kjt for kjt, _ in found], [why for _, why in found]

    def read_parts(
        self, parts: Sequence[Any], on_host: Sequence[Any]
    ) -> tuple[list[list[tuple[KJT, KJT | None]] | None], list[str | None]]:
        """The same of a batch in parts: [M][k], each with what the part has in host memory, or None where `on_host` has
        no such part."""
        found = [self.read(part) for part in parts]
        beside = [None if part is None else self.read(part)[0] for part in on_host]
        given: list[list[tuple[KJT, KJT | None]] | None] = []
        for m in range(len(self._names)):
            of_parts = [
                (kjts[m], None if host is None else host[m]) for (kjts, _), host in zip(found, beside, strict=True)
            ]
            there = [(kjt, host) for kjt, host in of_parts if kjt is not None]
            given.append(there if len(there) == len(parts) else None)
        return given, [next((why[m] for _, why in found if why[m] is not None), None) for m in range(len(self._names))]

    def learn(self, m: int, batch: Any, kjt: Any) -> str | None:
        """Module m got `kjt` while the user holds `batch`. Returns why its features are not found, if so."""
        if m in self.explicit:
            return None
        found = self._found[m]
        if self._tries[m] < TRIES and (found is None or (isinstance(found, Recipe) and not found.settled)):
            self._tries[m] += 1
            self._lost[m] = self._problem(kjt)
            if self._lost[m] is None:
                narrowed = found.narrowed(batch, kjt) if isinstance(found, Recipe) else None
                self._found[m] = narrowed or self._find(m, batch, kjt)
        return self._lost[m]

    def _find(self, m: int, batch: Any, kjt: KJT) -> Path | Recipe | None:
        path = kjt_paths.find(batch, kjt)
        if path is not None:
            return path
        built, missing = recipe(batch, kjt)
        if built is None:
            self._lost[m] = self._not_found(m, batch, kjt, missing)
        return built

    def _read(self, m: int, batch: Any) -> tuple[KJT | None, str | None]:
        found = self._found[m]
        if found is None:
            return None, self._lost[m]
        try:
            if isinstance(found, Path):
                kjt = kjt_paths.read(batch, found)
            elif isinstance(found, Recipe):
                kjt = found.read(batch, self.make)
            else:
                kjt = found(batch)
        except ValueError as error:
            if m in self.explicit:
                raise
            return None, str(error)
        why = self._problem(kjt)
        return (None, why) if why is not None else (kjt, None)

    def _not_found(self, m: int, batch: Any, kjt: KJT, missing: list[str]) -> str:
        name, keys = self._names[m], list(kjt.keys())
        which = "its features were" if len(missing) == len(keys) else f"its features {', '.join(missing)} were"
        return (
            f"{which} not found in the batch ({type(batch).__name__}): the model changes or makes these ids itself. "
            f"Pass features={{{name!r}: lambda batch: ...}} to fscomm.enable: a function from the batch to the "
            f"KeyedJaggedTensor that the module gets, with keys {', '.join(keys)}"
        )
