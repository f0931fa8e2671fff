"""The command `freescale init`: writes a schema file from the columns of files, with every guess as a comment.

`fsdata.setup.infer_schema` guesses; this file writes the guesses down as the TOML that `Schema.from_toml`,
`sources_from_toml` and `freescale check --schema` read.
"""

import json as text_form
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header, write_whole
from freescale_tools.console.terminal import Terminal

if TYPE_CHECKING:
    from fsdata.setup.infer_schema import Guess, Guesses

_SAMPLE_ROLES = ("context", "dense", "labels", "passthrough")
_LIST_ROLES = ("fields", "nested", "floats", "labels")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # of names in comments; those in strings are escaped by then
_MEANS = {
    "context": "one id per sample",
    "dense": "one number per sample",
    "labels": "what the model learns: one number per sample, or one for every candidate",
    "passthrough": "one text or whole number per sample that no model reads",
    "fields": "one id per element of the list",
    "nested": "several ids per element",
    "floats": "one number per element",
}


def init(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, folders (also hive partitions) or URLs.")],
    out: Annotated[Path, typer.Option(help="The schema file to write.")] = Path("schema.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Write a schema file to begin with: which lists are aligned, which columns are ids, labels and times.

    Looks at the first rows of up to 8 files. The file has every guess with its reason, to be read and
    changed; `freescale check PATHS --schema FILE` then reads all rows.
    """
    with Terminal(json=json) as terminal:
        from fsdata.errors import FreeScaleError
        from fsdata.setup.infer_schema import guess_columns

        if out.exists() and not force:
            raise UsageError(f"{out} is there already: give another --out, or --force to replace it")
        try:
            guesses = guess_columns(paths, None, hash_text=True)
        except ConnectionError as error:
            raise UsageError(f"{error}. Check the address, the network, the credentials and the permissions") from error
        except (FreeScaleError, OSError) as error:
            raise UsageError(str(error)) from error
        check = shlex.join(["freescale", "check", *paths, "--schema", str(out)])
        lines = _lines(guesses, check, out, paths)
        write_whole(out, "".join(f"{_CONTROL.sub(lambda found: repr(found[0])[1:-1], line)}\n" for line in lines))
        terminal.table(
            f"{out}: guesses from {guesses.rows:,} rows of {guesses.files} of {guesses.all_files:,} files",
            ["column", "is", "of the sequence", "because"],
            [[each.column, each.role or "left out", each.group, _why(each)] for each in guesses.columns],
        )
        terminal.say(f"Read the comments in {out}, then: {check}")
        columns = [
            {"column": each.column, "role": each.role, "group": each.group, "buckets": each.buckets, "why": _why(each)}
            for each in guesses.columns
        ]
        terminal.result(
            {
                **header("init"),
                "out": str(out),
                "rows": guesses.rows,
                "files": guesses.files,
                "all_files": guesses.all_files,
                "columns": columns,
                "partitions": list(guesses.partitions),
            }
        )


def _lines(guesses: "Guesses", check: str, out: Path, paths: Sequence[str]) -> Iterator[str]:
    fields = _field_names(guesses)
    own = [each for each in guesses.columns if each.group is None]
    yield f"# Guessed by `freescale init` from {guesses.rows:,} rows of {guesses.files} of {guesses.all_files:,} files."
    yield "# Move a name where a guess is wrong, and take out what your model does not read."
    yield f"# Then `{check}` reads all rows."
    if any(each.gaps == "some files lack it" for each in guesses.columns):
        yield "# The files do not have the same columns. If they are several sources, make a schema file for one of"
        yield "# them, and add the others as [[sources]], with `columns` that name theirs."
    yield from ("", "[schema]")
    yield from _roles(_SAMPLE_ROLES, own, fields)
    yield from (f"time = {_text(fields[each.column])}  # {each.why}" for each in own if each.role == "time")
    for name, alike in guesses.groups.items():
        if name == "candidates":
            yield from ("", f"[schema.candidates]  # {alike}")
        else:
            yield from ("", "[[schema.sequences]]", f"name = {_text(name)}  # {alike}")
        yield from _roles(_LIST_ROLES, [each for each in guesses.columns if each.group == name], fields)
    yield from _source(guesses, paths, out, fields)
    left_out = [each for each in guesses.columns if each.role is None]
    if left_out:
        yield from ("", "# Left out:")
        yield from (f"#   {each.column}: {each.why}" for each in left_out)
    if guesses.partitions:
        yield from (
            "",
            "# Keys of folders are columns as well. A model that reads one has it in `context`; text is for",
        )
        yield "# `passthrough`:"
        yield from (f"#   {name}, such as {value}" for name, value in guesses.partitions.items())


def _field_names(guesses: "Guesses") -> dict[str, str]:
    """Column -> its name as a field: of a path through structs the last name, if no other column ends alike."""
    last = {each.column: each.column.rpartition(".")[2] for each in guesses.columns}
    taken = Counter([*last.values(), *guesses.groups])
    return {column: name if name and taken[name] == 1 else column for column, name in last.items()}


def _roles(roles: Sequence[str], guesses: Sequence["Guess"], fields: Mapping[str, str]) -> Iterator[str]:
    for role in roles:
        names = [each for each in guesses if each.role == role]
        if names:
            yield f"{role} = [  # {_MEANS[role]}"
            yield from (f"    {_text(fields[each.column])},  # {_why(each)}" for each in names)
            yield "]"


def _source(guesses: "Guesses", paths: Sequence[str], out: Path, fields: Mapping[str, str]) -> Iterator[str]:
    """Where the files are, seen from the schema file; texts that become ids; values for those that are missing."""
    fixed = [path for path in paths if "://" in path or path.startswith("~") or Path(path).is_absolute()]
    named = [path if path in fixed else os.path.relpath(path, out.parent) for path in paths]
    yield from ("", "[[sources]]", f"paths = [{', '.join(map(_text, named))}]")
    used = [each for each in guesses.columns if each.role]
    columns = {}
    for each in used:
        name = fields[each.column]
        if each.buckets:
            columns[name] = f"{{ key = {_text(each.column)}, buckets = {each.buckets} }}"
        elif name != each.column:
            columns[name] = _text(each.column)
    gaps = [each for each in used if each.gaps]
    defaults = {fields[each.column]: '""' if each.text else "0" for each in gaps if each.role != "labels"}
    dropped = {fields[each.column]: '"drop"' for each in gaps if each.role == "labels"}
    what = ["texts become ids by a hash: with more buckets fewer texts share an id"] * any(e.buckets for e in used)
    what += ["fields inside structs by their path"] * any(fields[each.column] != each.column for each in used)
    yield from _table("columns", "; ".join(what), columns)
    yield from _table("defaults", "where a value is null or not finite, or files lack the column", defaults)
    yield from _table("nulls", "rows without a label are left out", dropped)


def _table(table: str, what: str, entries: dict[str, str]) -> Iterator[str]:
    if entries:
        yield from ("", f"[sources.{table}]  # {what}")
        for name, value in entries.items():
            yield f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _text(name)} = {value}"


def _why(guess: "Guess") -> str:
    return "; ".join(filter(None, (guess.why, guess.gaps)))


def _text(value: str) -> str:
    """A string of TOML."""
    return text_form.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
