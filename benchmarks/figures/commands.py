"""The reference of the command line, from the commands that `freescale` offers.

It is made of names, types, help texts and defaults, not of the output of `--help`, which is as wide as a terminal.
"""

import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

import typer

from figures.records import say, table
from freescale_tools.cli import EXAMPLES, app

_VALUES = {str: "text", int: "integer", float: "number", Path: "path"}


def reference() -> None:
    """A table of the commands, then for each of them its example, its help and its options."""
    examples = {function.__name__.replace("_", "-"): example for function, example in EXAMPLES.items()}
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # typer's own class, or click's: by its version
    table(["command", "what it does"], [[f"[`{name}`](#{name})", commands[name].short_help] for name in examples])
    for name, example in examples.items():
        print(f"\n## {name}\n\n```bash\n{example}\n```")
        _, *details = commands[name].help.split("\n\n")  # the first paragraph is in the table
        for paragraph in details:
            say(" ".join(paragraph.split()))
        _parameters(commands[name])


def _parameters(command: Any) -> None:
    types = typing.get_type_hints(command.callback)
    rows = []
    for parameter in command.params:
        if parameter.hidden:
            continue
        names = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        meaning, _, default = parameter.help.partition("Default: ")
        if parameter.required:
            default = "required"
        elif parameter.default not in (None, []) and parameter.default is not False:
            default = f"`{_text(parameter)}`"
        cells = (names, _values(types[parameter.name]), meaning.strip(), default.strip().removesuffix("."))
        rows.append([cell.replace("|", "\\|") for cell in cells])
    table(["argument or option", "value", "meaning", "default"], rows)


def _values(annotation: Any) -> str:
    """What an argument or option takes; nothing for a flag."""
    (kind,) = {*typing.get_args(annotation)} - {NoneType} if NoneType in typing.get_args(annotation) else {annotation}
    if typing.get_origin(kind) is list:
        return f"{_values(*typing.get_args(kind))}; repeatable"
    if kind is bool:
        return ""
    return ", ".join(f"`{each.value}`" for each in kind) if issubclass(kind, Enum) else _VALUES[kind]


def _text(parameter: Any) -> str:
    """The default as it is typed."""
    if parameter.default is True:
        return parameter.opts[0]
    return str(parameter.default.value if isinstance(parameter.default, Enum) else parameter.default)
