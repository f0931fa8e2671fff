"""Embedding tables as planning sees them: from a TOML file, with what the profiled data say of them.

A feature is a column of the profiled files. Lengths stand in the profile. How often rows are used does not: a part of
every file is read for it.

Letters: F features of a table, S slices of its rows.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freescale_tools.collisions.id_rows import IdRows
from freescale_tools.console.errors import UsageError
from freescale_tools.model.workload import mean_lengths
from freescale_tools.scan.files import FileSet, open_files

KINDS = ("sequence", "pooled")
DTYPES = {"fp32": 4, "fp16": 2}
OPTIMIZERS = (  # that TorchRec fuses with the backward pass, by fbgemm's names (EmbOptimType); the first is the default
    *("exact_sgd", "sgd", "lars_sgd", "exact_adagrad", "exact_row_wise_adagrad", "row_wise_adagrad"),
    *("adam", "partial_row_wise_adam", "lamb", "partial_row_wise_lamb"),
)
SLICES = 1 << 16  # of the rows of a table: of smaller tables, each row
MOST_IDS = 1 << 22  # of a feature that are read
_FILE = "a file with [tables.NAME] of rows, dim and features"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """One embedding table. Raises ValueError for values that no table has."""

    name: str
    rows: int
    dim: int  # columns
    features: tuple[str, ...]
    kind: str = "sequence"  # one vector per id (EmbeddingCollection); pooled: per feature and sample (...BagCollection)
    module: str = "embeddings"  # path of the collection in the model, as `named_modules` has it
    ids_per_sample: tuple[float, ...] | None = None  # [F] means; None: not known yet
    dtype: str = "fp32"
    optimizer: str = OPTIMIZERS[0]  # its states lie beside the rows
    uses: np.ndarray | None = None  # float64 [S]: look-ups by equal slices of the rows, in order; None: all rows alike

    def __post_init__(self) -> None:
        for name in ("rows", "dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r}: a whole number of 1 or more is needed")
        if not all(isinstance(one, str) and one for one in self.features):
            raise ValueError(f"features = {list(self.features)}: a list of names is needed")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError(f"features = {list(self.features)}: one or more different names are needed")
        for name, known in (("kind", KINDS), ("dtype", tuple(DTYPES)), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                needed = f"{', '.join(known[:-1])} or {known[-1]}"
                raise ValueError(f"{name} = {getattr(self, name)!r}: {needed} is needed")
        if not isinstance(self.module, str) or (self.module and not all(self.module.split("."))):
            raise ValueError(
                f"module = {self.module!r}: the path of the collection in the model is needed, as in dlrm.bags"
            )
        if self.ids_per_sample is not None and not (
            len(self.ids_per_sample) == len(self.features)
            and all(isinstance(ids, int | float) and not isinstance(ids, bool) for ids in self.ids_per_sample)
            and all(math.isfinite(ids) and ids > 0 for ids in self.ids_per_sample)
        ):
            raise ValueError(
                f"ids_per_sample = {list(self.ids_per_sample)}: a number above 0, or one per feature, is needed, "
                f"{len(self.features)} in all"
            )
        if self.uses is not None and not (self.uses.min(initial=0.0) >= 0 and self.uses.sum() > 0):
            raise ValueError("uses: shares of 0 or more, not all 0, are needed")

    @property
    def pooled(self) -> bool:
        return self.kind == "pooled"

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
        if self.uses is None or rows == self.rows:
            return rows / self.rows
        ends = np.linspace(0, self.rows, len(self.uses) + 1)
        below = np.concatenate([[0.0], np.cumsum(self.uses / self.uses.sum())])
        low, high = np.interp([first, first + rows], ends, below)
        return float(high - low)


def read_tables(path: Path) -> tuple[Table, ...]:
    """The tables of a TOML file with one [tables.NAME] each.

    Keys: rows, dim, features; kind ("sequence" or "pooled", default "sequence"), module (default "embeddings"),
    ids_per_sample (a number, or one per feature; default: from the profile), dtype ("fp32" or "fp16"), optimizer (one
    of OPTIMIZERS; beside the tables, it is that of all which name none).
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
    of_all = {"optimizer": document.pop("optimizer")} if "optimizer" in document else {}
    faults = [f"{name!r} is not known: only tables and optimizer are" for name in document]
    if not isinstance(given, dict) or not given:
        raise UsageError(f"{path}: {'; '.join([*faults, f'no tables: {_FILE} is needed'])}")
    tables = []
    for name, values in given.items():
        try:
            tables.append(_table(name, values, of_all))
        except ValueError as error:
            faults.append(f"[tables.{name}] {error}")
    if faults:
        raise UsageError(f"{path}: {'; '.join(faults)}")
    check_tables(tables, str(path))
    return tuple(tables)


def _table(name: str, values: Any, of_all: Mapping[str, Any]) -> Table:
    known = [field.name for field in dataclasses.fields(Table) if field.name not in ("name", "uses")]
    if not isinstance(values, Mapping):
        raise ValueError("must be a table of rows, dim and features")
    if unknown := sorted(values.keys() - set(known)):
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise ValueError(f"has no {unknown[0]!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    if missing := [key for key in ("rows", "dim", "features") if key not in values]:
        raise ValueError(f"needs {', '.join(missing)}")
    features, ids = values["features"], values.get("ids_per_sample")
    if not isinstance(features, list):
        raise ValueError(f"features = {features!r}: a list of names is needed")
    each = ids if isinstance(ids, list) or ids is None else [ids] * len(features)
    in_tuples = {"features": tuple(features), "ids_per_sample": None if each is None else tuple(each)}
    return Table(name=name, **{**of_all, **values, **in_tuples})


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


def with_lengths(tables: Sequence[Table], profile: Mapping[str, Any], *, max_length: int | None) -> tuple[Table, ...]:
    """Tables whose `ids_per_sample` is known: as given, or the mean of the profiled lists, cut to `max_length`.

    Raises UsageError that names the features of which nothing is known.
    """
    means = mean_lengths(profile, max_length)
    unknown = {feature for table in tables if table.ids_per_sample is None for feature in table.features}
    if unknown := {feature for feature in unknown if not means.get(feature)}:
        raise UsageError(
            f"the profile has no lengths of {', '.join(sorted(unknown))}: it has {', '.join(means) or 'none'}. Profile "
            "these columns (--sequence), or give ids_per_sample in the tables' TOML file"
        )
    return tuple(
        dataclasses.replace(table, ids_per_sample=tuple(means[feature] for feature in table.features))
        if table.ids_per_sample is None
        else table
        for table in tables
    )


def with_uses(tables: Sequence[Table], paths: Sequence[str], columns: Sequence[str]) -> tuple[Table, ...]:
    """Tables with the `uses` that `columns` of the files at `paths` show.

    A table stays as it is if none of its features is such a column. Ids beyond the table are taken modulo its rows.
    At most MOST_IDS ids of a feature are read, the same share of every file. Raises UsageError for columns without
    integers, and for files that cannot be read.
    """
    wanted = sorted({feature for table in tables for feature in table.features} & set(columns))
    if not wanted:
        return tuple(tables)
    files = open_files(list(paths))
    read = {column: column_ids(files, column) for column in wanted}
    found = []
    for table in tables:
        slices = min(table.rows, SLICES)
        counts = np.zeros(slices)
        for ids in (read[feature] for feature in table.features if feature in read):
            # In floats: ids near 2^63 times the slices do not fit into 64 bits.
            place = (ids % table.rows).astype(np.float64) * (slices / table.rows)
            counts += np.bincount(np.minimum(place.astype(np.int64), slices - 1), minlength=slices)
        found.append(dataclasses.replace(table, uses=counts) if counts.any() else table)
    return tuple(found)


def column_ids(files: FileSet, column: str, *, most: int = MOST_IDS) -> np.ndarray:
    """int64 ids of a column of integers, or of lists of them: the first ones of row groups, of each file alike many."""
    found = [np.empty(0, np.int64)]
    with IdRows(files, column) as opened:
        for number in opened.leaves:
            left = max(most // len(files.footers), 1)
            for group, rows in enumerate(files.footers[number].row_groups):
                if left > 0 and rows:
                    found.append(opened.read(number, group, rows).ids[:left])
                    left -= len(found[-1])
        damaged = [one for one in opened.skipped if one.row_group is not None]
    if damaged:
        raise UsageError(f"{damaged[0].file}: {column} cannot be read: {damaged[0].reason}")
    return np.concatenate(found)
