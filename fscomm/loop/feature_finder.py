"""The source of each module's features in a batch: learned at its first forward, or given by the user.

One batch may be misleading: two of its KJTs may be equal, such as empty ones, and batches may have several structures.
So a module may have several sources. When it gets other features than were announced, the sources that fit the batch
are tried first from then on; if there are none, the batch is searched again.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fscomm.loop import kjt_paths
from fscomm.loop.kjt_paths import KJT, Make

Reader = Callable[[Any], Any]
TRIES = 3  # batches that are searched before a module is given up
LOOKS = 8  # batches that are searched again, after a module had got other features than were announced
_MOST_SOURCES = 8


class Source(Protocol):
    """Where in a batch a module has its features."""

    def read(self, batch: Any, *, checked: bool = False) -> KJT:
        """Raises ValueError where the batch does not have them. checked: the same batch was read before."""

    def narrowed(self, batch: Any, kjt: KJT) -> "Source | None":
        """The source without what does not give `kjt` from `batch`; None if nothing is left."""


Search = Callable[[Any, KJT, Sequence[Source]], tuple[Source | None, list[str]]]
"""From a batch, a KJT that is not in it, and the sources known so far, to the way it was built; without one, to its
keys that are nowhere in the batch."""


def _nowhere(batch: Any, kjt: KJT, known: Sequence[Source]) -> tuple[None, list[str]]:
    return None, list(kjt.keys())


class FeatureFinder:
    """For each module, where the next batch has its features.

    `names`: of the served modules, once for each call; `given`: functions from a batch to the KJT of a module, by name;
    a list of them for its calls. `search`: for KJTs that models build.

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
        search: Search = _nowhere,
    ) -> None:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise ValueError(
                f"features= names {', '.join(unknown)}, but the modules served are "
                f"{', '.join(dict.fromkeys(names)) or 'none'}"
            )
        self._names = names
        self._readers: dict[int, Reader] = {}
        for name, readers in given.items():
            of_calls, first = [readers] if callable(readers) else list(readers), names.index(name)
            if len(of_calls) > names.count(name):
                raise ValueError(
                    f"features= has {len(of_calls)} functions for {name}, one for each call, but calls="
                    f"{names.count(name)} says how often it is called"
                )
            self._readers |= dict(enumerate(of_calls, first))
        self.explicit = frozenset(self._readers)
        self._sources: list[list[Source]] = [[] for _ in names]  # the first one that can be read in a batch counts
        self._problem = problem
        self.make = make
        self._search_recipe = search
        self._lost: list[str | None] = [None] * len(names)
        self._tries = [0] * len(names)
        self._looks = [0] * len(names)

    def read(self, batch: Any, *, checked: bool = False) -> tuple[list[KJT | None], list[str | None]]:
        """[M] the features of each module in `batch`, and why there are none; neither before a module was seen.
        checked: the same batch was read before."""
        found = [self._read(m, batch, checked) for m in range(len(self._names))]
        return [kjt for kjt, _ in found], [why for _, why in found]

    def read_each(
        self, parts: Sequence[Any], on_host: Sequence[Any]
    ) -> tuple[list[list[tuple[KJT, KJT | None]] | None], list[str | None]]:
        """The same of the parts of a batch, one for each forward: [M][k], each with what the part has in host memory,
        or None where `on_host` has no such part."""
        beside = [None if part is None else self.read(part)[0] for part in on_host]
        found = [self.read(part, checked=host is not None) for part, host in zip(parts, beside, strict=True)]
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
        if m not in self.explicit and not self._sources[m] and self._tries[m] < TRIES:
            self._tries[m] += 1
            self._lost[m] = self._problem(kjt)
            if self._lost[m] is None:
                self._sources[m], missing = self._search(batch, kjt, ())
                self._lost[m] = None if self._sources[m] else self._not_found(m, batch, kjt, missing)
        return self._lost[m]

    def correct(self, m: int, batch: Any, kjt: KJT) -> bool:
        """Module m got `kjt` while the user holds `batch`, and other features, or none, were announced. Returns whether
        its features will be found in such batches."""
        if not self._sources[m] or self._problem(kjt) is not None:
            return False
        narrowed = [source.narrowed(batch, kjt) for source in self._sources[m]]
        fitting = [source for source in narrowed if source is not None]
        if not fitting and self._looks[m] < LOOKS and len(kjt.values()):  # no ids at all would fit everywhere
            self._looks[m] += 1
            fitting, _ = self._search(batch, kjt, self._sources[m])
        others = [source for source, fits in zip(self._sources[m], narrowed, strict=True) if fits is None]
        self._sources[m] = (fitting + others)[:_MOST_SOURCES]
        return bool(fitting)

    def where(self, m: int) -> str:
        """Where module m has its features."""
        if m in self.explicit:
            return "what features= gave"
        return textwrap.shorten(str(self._sources[m][0]), 200) if self._sources[m] else "the batch"

    def holds(self, batch: Any, kjt: KJT) -> bool:
        """Whether `batch` has, or a model may have built from it, `kjt`."""
        return bool(self._search(batch, kjt, ())[0])

    def _search(self, batch: Any, kjt: KJT, known: Sequence[Source]) -> tuple[list[Source], list[str]]:
        """Every source of `kjt` in a batch; without any, the keys that are nowhere in it."""
        if paths := kjt_paths.find(batch, kjt):
            return list(paths[:_MOST_SOURCES]), []
        built, missing = self._search_recipe(batch, kjt, known)
        return [] if built is None else [built], missing

    def _read(self, m: int, batch: Any, checked: bool) -> tuple[KJT | None, str | None]:
        if m in self.explicit:
            return self._usable(self._readers[m](batch))
        first: str | None = None
        for source in self._sources[m]:
            try:
                return self._usable(source.read(batch, checked=checked))
            except ValueError as error:
                first = first or str(error)
        return None, first or self._lost[m]

    def _usable(self, kjt: Any) -> tuple[KJT | None, str | None]:
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
