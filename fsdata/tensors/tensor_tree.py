"""Splits batches of any structure into samples by reference, and builds batches of other samples.

`take_apart` descends through containers (dataclass, NamedTuple, dict, tuple, list) to tensors, KeyedJaggedTensors and
`Jagged`, whose first dimension is the samples, and to lists of one text, bytes or number per sample. It finds the
address of every value of every sample. `Template.build` makes the same structure from other samples. A part that cannot
be split by sample is an error, unless it is to be replicated.

A rank that has no batch of its own receives the structure as text: JSON, with the import path of each container type.
Nothing that a peer sent is executed: a type is imported by its name and must be a container of the stated kind.

Letters: B samples, F fields.
"""

import dataclasses
import importlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fsdata.balance.exchange.route import RecordSpec
from fsdata.batch.jagged import Jagged
from fsdata.batch.torchrec_binding import is_keyed_jagged_tensor, keyed_jagged_tensor
from fsdata.decode.block import Block, Column, RowRefs, run
from fsdata.errors import DataError
from fsdata.tensors.entries import ENTRIES, TYPES, from_bytes, is_list, may_move, to_bytes

LENGTH = "length of "
"""Prefix of the groups of the lengths that the cost model sees; their fields have no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorField:
    """One field of the samples: a column of a tensor, or the values or weights of one jagged key.

    Attributes:
        shape: of one element (a row of a tensor).
        group: name of the jagged lengths, which fields may share; None: one element per sample.
    """

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    group: str | None

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    @property
    def of_entries(self) -> bool:
        return self.group is not None and self.group.startswith(ENTRIES)

    def __str__(self) -> str:
        if self.of_entries:
            return "entries[B]"
        kind = str(self.dtype).removeprefix("torch.")
        rows = "B" if self.group is None else "jagged"
        return f"{kind}[{', '.join([rows, *map(str, self.shape)])}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A node of the structure: how a value is built from its children, fields and constants.

    Attributes:
        kind: one of dataclass, named, sequence, mapping, none, constant, tensor, jagged, kjt, entries.
        make: the type of a container, or of a list of entries. names: of its children; of a kjt, its keys.
        fields: indices of the node's fields; of a kjt, the values of all keys, then their weights.
    """

    kind: str
    make: type | None = None
    names: tuple[str, ...] = ()
    children: tuple["TreeNode", ...] = ()
    fields: tuple[int, ...] = ()
    path: str = ""
    lengths_dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The structure of a batch, without its samples."""

    root: TreeNode
    fields: tuple[TensorField, ...]
    spec: RecordSpec

    @property
    def constants(self) -> list[str]:
        """Paths of the replicated values."""
        return [node.path for node in _nodes(self.root) if node.kind == "constant"]

    def describe(self) -> dict[str, str]:
        """path -> type; equal for all batches of all ranks."""
        return {"batch": _outline(self.root), **{field.path: str(field) for field in self.fields}}

    def build(self, rows: RowRefs, constants: Mapping[str, Any]) -> Any:
        """A batch of these samples: one copy of every value into fresh tensors."""
        return _Builder(self, rows, constants).build(self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenApart:
    """A batch by reference. constants: path -> replicated value."""

    template: Template
    rows: RowRefs
    constants: dict[str, Any]


def template_of(root: TreeNode, fields: tuple[TensorField, ...]) -> Template:
    """The template of a structure."""
    # Groups of entries come last: `RecordSpec.uncounted` counts from the end, and their bytes are no work.
    jagged = (field for field in sorted(fields, key=lambda field: field.of_entries) if field.group is not None)
    groups = list(dict.fromkeys(str(field.group) for field in jagged))
    first = [next(slot for slot, field in enumerate(fields) if field.group == group) for group in groups]
    spec = RecordSpec(
        names=tuple(f"{field.path} {field}" for field in fields),
        itemsize=np.array([field.itemsize for field in fields], np.int64),
        group=np.array([-1 if field.group is None else groups.index(field.group) for field in fields], np.int64),
        width=np.array([int(field.group is None) for field in fields], np.int64),
        groups=tuple(groups),
        group_field=np.array(first, np.int64),
        uncounted=sum(field.of_entries for field in fields),
    )
    return Template(root=root, fields=fields, spec=spec)


Measure = Callable[[Any, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""(batch, path -> int64 [B] of its jagged fields) -> name -> int64 [B], the lengths that the cost model sees."""


def take_apart(batch: Any, replicate: Collection[str], measure: Measure, first: Template | None = None) -> TakenApart:
    """Split a batch by reference. The lengths of `measure` become groups `LENGTH + name` of the template's spec.

    first: template of the first batch. A list that is empty, or has only None, may be a list of entries or a container:
    it is what it was in the first batch. There it is a list of entries if it has one per sample.

    Raises:
        DataError: a leaf that cannot be split by sample, or has another number of samples, naming its path.
        ValueError: `replicate` names no path of the batch.
    """
    walk = _Walk(replicate, () if first is None else {field.path for field in first.fields if field.of_entries})
    root = walk.node(batch, "")
    if first is None:
        # The number of samples is known only after the first walk, so ambiguous lists need a second one.
        entry_paths = {path for path, size in walk.ambiguous.items() if size == walk.samples}
        if entry_paths:
            walk = _Walk(replicate, entry_paths)
            root = walk.node(batch, "")
    unknown = sorted(set(replicate) - set(walk.constants))
    if unknown:
        raise ValueError(
            f"replicate names {unknown}, but the batch has "
            f"{sorted({field.path for field in walk.fields})}: give paths as "
            "in error messages, 'labels.click' or '0.mask'"
        )
    if walk.samples is None:
        raise DataError(f"a batch of type {type(batch).__name__} holds no tensor: there is nothing to balance")
    lengths = measure(batch, walk.jagged())
    for name, values in lengths.items():
        if values.shape != (walk.samples,):
            raise DataError(f"lengths {name!r} has shape {values.shape} for a batch of {walk.samples} samples")
    return walk.finish(root, lengths)


class _Walk:
    """Collects fields and their values while it descends."""

    def __init__(self, replicate: Collection[str], entry_paths: Collection[str]) -> None:
        """entry_paths: ambiguous lists (empty, or only None) that have one entry per sample.

        Attributes:
            ambiguous: path -> length of all other ambiguous lists.
        """
        self.replicate = frozenset(replicate)
        self.constants: dict[str, Any] = {}
        self.fields: list[TensorField] = []
        self.samples: int | None = None
        self.ambiguous: dict[str, int] = {}
        self._entry_paths = entry_paths
        self._first_path = ""  # of the part from which `samples` was taken
        self._columns: list[Column] = []

    def node(self, value: Any, path: str) -> TreeNode:
        if path in self.replicate:
            self.constants[path] = value
            return TreeNode(kind="constant", path=path)
        if value is None:
            return TreeNode(kind="none")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, Jagged):
            return self._jagged(value, path)
        if is_keyed_jagged_tensor(value):
            return self._kjt(value, path)
        if may_move(value):
            if any(entry is not None for entry in value) or path in self._entry_paths:
                return self._entries(value, path)
            self.ambiguous[path] = len(value)
        container = _unpack(value)
        entries = [entry for entry in value if entry is not None] if is_list(value) else []
        if container is None or (entries and not any(map(_is_part, entries))):
            raise DataError(_refusal(value, path))
        kind, names, children = container
        nodes = tuple(
            self.node(child, f"{path}.{name}".lstrip(".")) for name, child in zip(names, children, strict=True)
        )
        below = {node.kind for child in nodes for node in _nodes(child)}
        if kind == "sequence" and "entries" in below and not below & {"tensor", "jagged", "kjt"}:
            raise DataError(
                f"{_at(path)} is a {type(value).__name__} of lists, which may belong to samples or hold one entry for "
                "each: name its parts in a dict, or write what belongs to a sample as one text, such as by json.dumps"
            )
        return TreeNode(kind=kind, make=type(value), names=names, children=nodes)

    def jagged(self) -> dict[str, np.ndarray]:
        """Group -> int64 [B]."""
        return {
            field.group: column.length
            for field, column in zip(self.fields, self._columns, strict=True)
            if field.group is not None and column.length is not None and not field.of_entries
        }

    def finish(self, root: TreeNode, lengths: Mapping[str, np.ndarray]) -> TakenApart:
        for name, values in lengths.items():
            # No bytes per element, so that only the lengths themselves are exchanged.
            field = TensorField(path=LENGTH + name, dtype=torch.uint8, shape=(0,), group=LENGTH + name)
            self._add(field, torch.empty((0, 0), dtype=torch.uint8), np.asarray(values, np.int64))
        template = template_of(root, tuple(self.fields))
        rows = RowRefs.of(Block.of(self._columns, self.samples or 0))
        return TakenApart(template=template, rows=rows, constants=self.constants)

    def _tensor(self, value: torch.Tensor, path: str) -> TreeNode:
        rows = _dense(value, path)
        if rows.dim() == 0:
            raise DataError(
                f"{_at(path)} is a tensor without dimensions: it cannot be split by sample. {_remedy(path)}"
            )
        self._count(len(rows), path)
        field = TensorField(path=path, dtype=rows.dtype, shape=tuple(rows.shape[1:]), group=None)
        return TreeNode(kind="tensor", fields=(self._add(field, rows, None),), path=path)

    def _jagged(self, value: Jagged, path: str) -> TreeNode:
        values = _dense(value.values, path)
        lengths = _dense(value.offsets, path).diff().numpy()
        self._count(len(lengths), path)
        field = TensorField(path=path, dtype=values.dtype, shape=tuple(values.shape[1:]), group=path)
        start = int(value.offsets[0])  # not 0 in a slice of a larger batch
        return TreeNode(kind="jagged", fields=(self._add(field, values[start:], lengths),), path=path)

    def _kjt(self, value: Any, path: str) -> TreeNode:
        if value.variable_stride_per_key():
            raise DataError(
                f"{_at(path)} is a KeyedJaggedTensor with a batch size per key, which cannot be split by sample"
            )
        keys, stride = tuple(value.keys()), value.stride()
        self._count(stride, path)
        flat_lengths = _dense(value.lengths(), path)
        lengths = flat_lengths.to(torch.int64).numpy().reshape(len(keys), stride)
        starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
        weights = value.weights_or_none()
        indices = []
        for values, suffix in ((value.values(), ""), *([] if weights is None else [(weights, " (weights)")])):
            flat = _dense(values, path)
            for i, key in enumerate(keys):
                name = f"{path}.{key}".lstrip(".")
                field = TensorField(path=name + suffix, dtype=flat.dtype, shape=tuple(flat.shape[1:]), group=name)
                indices.append(self._add(field, flat[starts[i] : starts[i + 1]], lengths[i]))
        return TreeNode(kind="kjt", names=keys, fields=tuple(indices), path=path, lengths_dtype=flat_lengths.dtype)

    def _entries(self, value: Any, path: str) -> TreeNode:
        data, lengths = to_bytes(value)
        self._count(len(lengths), path)
        field = TensorField(path=path, dtype=torch.uint8, shape=(), group=ENTRIES + path)
        return TreeNode(kind="entries", make=type(value), fields=(self._add(field, data, lengths),), path=path)

    def _add(self, field: TensorField, values: torch.Tensor, lengths: np.ndarray | None) -> int:
        """lengths: int64 [B]; None: one value each."""
        table = run(values.data_ptr(), len(values) if lengths is None else int(lengths.sum()))
        start = None if lengths is None else np.cumsum(lengths) - lengths
        self.fields.append(field)
        # `owners` keeps the tensor in memory: the column has only the address of its values.
        self._columns.append(Column(table, start, lengths, owners=(values,)))
        return len(self.fields) - 1

    def _count(self, samples: int, path: str) -> None:
        if self.samples is None:
            self.samples, self._first_path = samples, path
        elif samples != self.samples:
            raise DataError(
                f"{_at(path)} has {samples} samples (first dimension), {_at(self._first_path)} has {self.samples}: all "
                f"parts of a batch need one entry per sample. {_remedy(path)}"
            )


class _Builder:
    """Copies samples into tensors and puts them into the structure."""

    def __init__(self, template: Template, rows: RowRefs, constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self._samples = rows.num_rows
        spans = rows.spans()
        self._length, counts = spans.length, spans.counts
        self._flat: dict[int, torch.Tensor] = {}
        target = np.zeros(len(counts), np.int64)
        for fields in _buffers(template.root):
            first = template.fields[fields[0]]
            total = int(counts[list(fields)].sum())
            # Allocated as bytes: torch.empty warns for some dtypes, such as complex32.
            flat = torch.empty(total * first.itemsize, dtype=torch.uint8).view(first.dtype).view(total, *first.shape)
            self._flat[fields[0]] = flat
            before = np.cumsum(counts[list(fields)]) - counts[list(fields)]
            target[list(fields)] = flat.data_ptr() + first.itemsize * before
        spans.gather(template.spec.itemsize, target)

    def build(self, node: TreeNode) -> Any:
        if node.kind == "none":
            return None
        if node.kind == "constant":
            return self._constants[node.path]
        if node.kind == "tensor":
            return self._flat[node.fields[0]]
        if node.kind == "jagged":
            return Jagged.from_lengths(self._flat[node.fields[0]], torch.from_numpy(self._length[node.fields[0]]))
        if node.kind == "kjt":
            return self._kjt(node)
        if node.kind == "entries":
            return from_bytes(self._flat[node.fields[0]], self._length[node.fields[0]], node.make or list)
        return _pack(node, [self.build(child) for child in node.children])

    def _kjt(self, node: TreeNode) -> Any:
        keys = len(node.names)
        lengths = torch.from_numpy(self._length[list(node.fields[:keys])].reshape(-1)).to(node.lengths_dtype)
        weights = self._flat[node.fields[keys]] if len(node.fields) > keys else None
        return keyed_jagged_tensor(node.names, self._flat[node.fields[0]], lengths, self._samples, weights=weights)


def _buffers(root: TreeNode) -> Iterator[tuple[int, ...]]:
    """For every tensor of the structure the fields that it holds, one after another."""
    for node in _nodes(root):
        if node.kind == "kjt":
            keys = len(node.names)
            yield node.fields[:keys]
            if len(node.fields) > keys:
                yield node.fields[keys:]
        elif node.fields:
            yield node.fields


def _nodes(node: TreeNode) -> Iterator[TreeNode]:
    """A node and all nodes below it."""
    yield node
    for child in node.children:
        yield from _nodes(child)


def _unpack(value: Any) -> tuple[str, tuple[str, ...], list[Any]] | None:
    """Kind, names and children of a container; None: the value is no container."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return "dataclass", names, [getattr(value, name) for name in names]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "named", tuple(value._fields), list(value)
    if type(value) in (tuple, list):
        return "sequence", tuple(map(str, range(len(value)))), list(value)
    if type(value) in (dict, OrderedDict) and all(isinstance(key, str) for key in value):
        return "mapping", tuple(value), list(value.values())
    return None


def _is_part(value: Any) -> bool:
    """Whether an entry of a list is a part of the batch; else it belongs to one sample."""
    tensor = isinstance(value, torch.Tensor | Jagged) or is_keyed_jagged_tensor(value)
    return tensor or _unpack(value) is not None


def _refusal(value: Any, path: str) -> str:
    if is_list(value):
        other = next((type(entry).__name__ for entry in value if not may_move([entry])), "None")
        return (
            f"{_at(path)} is a {type(value).__name__} with entries of type {other}: only entries of the types {TYPES} "
            f"can move with their samples. Convert them (str, json.dumps, .tolist()), or make a tensor of them. "
            f"{_remedy(path)}"
        )
    return (
        f"{_at(path)} is of type {type(value).__name__}: only tensors, KeyedJaggedTensors, Jagged, and lists with one "
        f"entry per sample ({TYPES}) can be split by sample, in dataclasses, NamedTuples, dicts with string keys, "
        f"tuples and lists. {_remedy(path)}"
    )


def _pack(node: TreeNode, children: list[Any]) -> Any:
    """The inverse of `_unpack`."""
    make: Callable[..., Any] = node.make or tuple
    if node.kind == "named":
        return make(*children)
    if node.kind == "sequence":
        return make(children)
    named = dict(zip(node.names, children, strict=True))
    if node.kind == "mapping":
        return make(named)
    fields = {field.name: field for field in dataclasses.fields(make)}  # type: ignore[arg-type]
    batch = make(**{name: child for name, child in named.items() if fields[name].init})
    for name, child in named.items():
        if not fields[name].init:
            object.__setattr__(batch, name, child)  # also in a frozen dataclass
    return batch


def _dense(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """The tensor, contiguous and without gradient; DataError if its values have no addresses on the CPU."""
    if tensor.device.type != "cpu":
        raise DataError(
            f"{_at(path)} is on {tensor.device}: batches are balanced over the CPU, before they go to the device. "
            "Move them after rebalance(...)"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise DataError(f"{_at(path)} is not a dense tensor ({tensor.layout}): its samples have no bytes of their own")
    # A conjugate view has the bytes of the original: the conjugation has to be done before bytes are copied.
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _outline(node: TreeNode) -> str:
    if not node.children and node.make is None:
        return node.kind
    if node.kind == "entries":
        return f"{node.make.__name__ if node.make else 'list'} of entries"
    inside = ", ".join(f"{name}: {_outline(child)}" for name, child in zip(node.names, node.children, strict=True))
    return f"{node.make.__name__ if node.make else node.kind}({inside})"


def _at(path: str) -> str:
    return f"batch part {path!r}" if path else "the batch"


def _remedy(path: str) -> str:
    if not path:
        return "Wrap it in a dict or dataclass"
    return f"Leave it out of the batch, or, if it is the same for all samples, list it: replicate=({path!r},)"


_CONTAINERS = {"sequence": (tuple, list), "entries": (tuple, list, np.ndarray), "mapping": (dict, OrderedDict)}


def to_text(template: Template) -> str:
    """The template as JSON.

    Raises:
        DataError: a container type that other ranks cannot import by its name.
    """
    fields = [
        {"path": field.path, "dtype": _name_of(field.dtype), "shape": field.shape, "group": field.group}
        for field in template.fields
    ]
    return json.dumps({"root": _node_as_json(template.root), "fields": fields})


def from_text(text: str) -> Template:
    """The template that another rank wrote with `to_text`.

    Raises:
        DataError: not such a text, or a type that cannot be imported here.
    """
    try:
        document = json.loads(text)
        fields = tuple(
            TensorField(
                path=field["path"], dtype=_dtype(field["dtype"]), shape=tuple(field["shape"]), group=field["group"]
            )
            for field in document["fields"]
        )
        return template_of(_node_from_json(document["root"]), fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"this is no structure of a batch ({error!r}): do all ranks run the same version?") from error


def _node_as_json(node: TreeNode) -> dict[str, Any]:
    return {
        "kind": node.kind,
        "make": None if node.make is None else _import_path(node.make),
        "names": node.names,
        "children": [_node_as_json(child) for child in node.children],
        "fields": node.fields,
        "path": node.path,
        "lengths_dtype": _name_of(node.lengths_dtype),
    }


def _node_from_json(node: dict[str, Any]) -> TreeNode:
    return TreeNode(
        kind=node["kind"],
        make=None if node["make"] is None else _imported(node["make"], node["kind"]),
        names=tuple(node["names"]),
        children=tuple(_node_from_json(child) for child in node["children"]),
        fields=tuple(node["fields"]),
        path=node["path"],
        lengths_dtype=_dtype(node["lengths_dtype"]),
    )


def _import_path(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    try:
        importable = _look_up(path) is kind
    except (ImportError, AttributeError):
        importable = False
    if not importable:
        raise DataError(f"other ranks cannot import {path}: define it at the top of a module")
    return path


def _imported(path: str, kind: str) -> type:
    try:
        imported = _look_up(path)
    except (ImportError, AttributeError) as error:
        raise DataError(f"{path} cannot be imported on this rank: {error}") from error
    # A peer names the type, and `build` calls it: only containers may be called.
    fits = isinstance(imported, type) and (
        (kind == "dataclass" and dataclasses.is_dataclass(imported))
        or (kind == "named" and issubclass(imported, tuple) and hasattr(imported, "_fields"))
        or imported in _CONTAINERS.get(kind, ())
    )
    if not fits:
        raise DataError(f"{path} is no {kind} on this rank")
    return imported


def _look_up(path: str) -> Any:
    module, _, names = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise DataError(f"{name} is no dtype")
    return dtype
