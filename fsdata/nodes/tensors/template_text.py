"""The structure of a batch as text, for a rank that has no batch of its own.

JSON, with the import path of each container type. Nothing that a peer sent is run: a type is imported by its name and
must be the kind of container that the structure says.
"""

import dataclasses
import importlib
import json
from collections import OrderedDict
from typing import Any

import torch

from fsdata.errors import DataError
from fsdata.nodes.tensors.tensor_tree import Node, Template, TensorField, template_of

_PLAIN = {"sequence": (tuple, list), "mapping": (dict, OrderedDict)}


def to_text(template: Template) -> str:
    """The template as JSON.

    Raises:
        DataError: a container type that other ranks cannot import by its name.
    """
    fields = [
        {"path": field.path, "dtype": _name_of(field.dtype), "shape": field.shape, "group": field.group}
        for field in template.fields
    ]
    return json.dumps({"root": _node_as_json(template.root), "fields": fields, "constants": template.constants})


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
        return template_of(_node_from_json(document["root"]), fields, tuple(document["constants"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"this is no structure of a batch ({error!r}): do all ranks run the same version?") from error


def _node_as_json(node: Node) -> dict[str, Any]:
    return {
        "kind": node.kind,
        "make": None if node.make is None else _import_path(node.make),
        "names": node.names,
        "children": [_node_as_json(child) for child in node.children],
        "fields": node.fields,
        "path": node.path,
        "lengths_dtype": _name_of(node.lengths_dtype),
    }


def _node_from_json(node: dict[str, Any]) -> Node:
    return Node(
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
        known = _look_up(path) is kind
    except (ImportError, AttributeError):
        known = False
    if not known:
        raise DataError(f"other ranks cannot import {path}: define it at the top of a module")
    return path


def _imported(path: str, kind: str) -> type:
    try:
        found = _look_up(path)
    except (ImportError, AttributeError) as error:
        raise DataError(f"{path} cannot be imported on this rank: {error}") from error
    fits = isinstance(found, type) and (
        (kind == "dataclass" and dataclasses.is_dataclass(found))
        or (kind == "named" and issubclass(found, tuple) and hasattr(found, "_fields"))
        or found in _PLAIN.get(kind, ())
    )
    if not fits:
        raise DataError(f"{path} is no {kind} on this rank")
    return found


def _look_up(path: str) -> Any:
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise DataError(f"{name} is no dtype")
    return found
