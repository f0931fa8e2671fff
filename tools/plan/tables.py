"""Embedding tables as planning sees them, and the TOML file that names them. Pure.

Letters: F features of a table, S slices of its rows, W ranks.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError

KINDS = {"sequence": False, "pooled": True}
DTYPES = {"fp32": 4, "fp16": 2}
_KEYS = ("rows", "dim", "features", "kind", "module", "ids_per_sample", "dtype")
_FILE = "a file with [tables.NAME] of rows, dim and features"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """One embedding table. Raises ValueError for numbers that no table has."""

    name: str
    rows: int
    dim: int
    """Columns."""
    features: tuple[str, ...]
    pooled: bool
    """Of an EmbeddingBagCollection: one vector per feature and sample. Else one per id (EmbeddingCollection)."""
    module: str = "embeddings"
    """Path of the collection in the model, as `named_modules` has it."""
    ids_per_sample: tuple[float, ...] | None = None
    """[F] mean ids of a sample; None: not known yet."""
    dtype: str = "fp32"
    uses: np.ndarray | None = None
    """float64 [S]: share of the look-ups by equal slices of the rows, in their order; None: all rows alike."""

    def __post_init__(self) -> None:
        for name in ("rows", "dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r}: a whole number of 1 or more is needed")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError(f"features = {list(self.features)}: one or more different names are needed")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype = {self.dtype!r}: {' or '.join(DTYPES)} is needed")
        if self.ids_per_sample is not None and not (
            len(self.ids_per_sample) == len(self.features)
            and all(math.isfinite(mean) and mean > 0 for mean in self.ids_per_sample)
        ):
            raise ValueError(
                f"ids_per_sample = {list(self.ids_per_sample)}: one number above 0 per feature is needed, "
                f"{len(self.features)} in all"
            )
        if self.uses is not None and not (self.uses.min(initial=0.0) >= 0 and self.uses.sum() > 0):
            raise ValueError("uses: shares of 0 or more, not all 0, are needed")

    @property
    def ids(self) -> float:
        """Mean ids of a sample, all features together. Raises ValueError where they are not known."""
        if self.ids_per_sample is None:
            raise ValueError(f"table {self.name}: the ids per sample are not known")
        return sum(self.ids_per_sample)

    @property
    def value_bytes(self) -> int:
        return DTYPES[self.dtype]

    def share(self, first: int, rows: int) -> float:
        """Share of the look-ups that use rows `first` to `first + rows - 1`, 0 to 1; within a slice all rows alike."""
        if self.uses is None:
            return rows / self.rows
        ends = np.linspace(0, self.rows, len(self.uses) + 1)
        below = np.concatenate([[0.0], np.cumsum(self.uses / self.uses.sum())])
        low, high = np.interp([first, first + rows], ends, below)
        return float(high - low)


def read_tables(path: Path) -> tuple[Table, ...]:
    """The tables of a TOML file with one [tables.NAME] each.

    Keys: rows, dim, features; kind ("sequence" or "pooled", default "sequence"), module (default "embeddings"),
    ids_per_sample (a number, or one per feature; default: from the profile), dtype ("fp32" or "fp16").
    Raises UsageError with all faults of the file in one message.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"no tables {path}: {error.strerror}; give {_FILE}, or a model as package.module:NAME"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    given = document.pop("tables", None)
    faults = [f"{name!r} is not known: only tables is" for name in document]
    if not isinstance(given, dict) or not given:
        raise UsageError(f"{path}: {'; '.join([*faults, f'no tables: {_FILE} is needed'])}")
    tables = []
    for name, values in given.items():
        try:
            tables.append(_table(name, values))
        except (TypeError, ValueError) as error:
            faults.append(f"[tables.{name}] {error}")
    if faults:
        raise UsageError(f"{path}: {'; '.join(faults)}")
    check_tables(tables, str(path))
    return tuple(tables)


def _table(name: str, values: Any) -> Table:
    if not isinstance(values, Mapping):
        raise ValueError("must be a table of rows, dim and features")
    if unknown := sorted(values.keys() - set(_KEYS)):
        close = difflib.get_close_matches(unknown[0], _KEYS, n=1)
        raise ValueError(f"has no {unknown[0]!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    if missing := [key for key in ("rows", "dim", "features") if key not in values]:
        raise ValueError(f"needs {', '.join(missing)}")
    features, kind = values["features"], values.get("kind", "sequence")
    if not isinstance(features, list) or not all(isinstance(one, str) and one for one in features):
        raise ValueError(f"features = {features!r}: a list of names is needed")
    if kind not in KINDS:
        raise ValueError(f"kind = {kind!r}: {' or '.join(KINDS)} is needed")
    module = values.get("module", "embeddings")
    if not isinstance(module, str):
        raise ValueError(f"module = {module!r}: the path of the collection in the model is needed, as a text")
    return Table(
        name=name, rows=values["rows"], dim=values["dim"], features=tuple(features), pooled=KINDS[kind], module=module,
        ids_per_sample=_means(values.get("ids_per_sample"), len(features)), dtype=values.get("dtype", "fp32"),
    )  # fmt: skip


def _means(given: Any, features: int) -> tuple[float, ...] | None:
    if given is None:
        return None
    each = given if isinstance(given, list) else [given] * features
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in each):
        raise ValueError(f"ids_per_sample = {given!r}: a number, or one per feature, is needed")
    return tuple(map(float, each))


def check_tables(tables: Sequence[Table], where: str) -> None:
    """Raise UsageError where tables of one module do not go together, as TorchRec's collections want them to."""
    modules: dict[str, list[Table]] = {}
    for table in tables:
        modules.setdefault(table.module, []).append(table)
    for path, inside in modules.items():
        named = ", ".join(table.name for table in inside)
        if len({table.pooled for table in inside}) > 1:
            raise UsageError(f"{where}: module {path!r} has sequence and pooled tables ({named}): make it two modules")
        if not inside[0].pooled and len({table.dim for table in inside}) > 1:
            raise UsageError(f"{where}: the sequence tables of module {path!r} ({named}) differ in dim: give them one")
    names = [table.name for table in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"{where}: {', '.join(twice)} stands in several modules: TorchRec's planner tells tables apart by name"
        )
