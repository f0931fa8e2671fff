"""The command `freescale diff`: reads two documents, shows what changed, and fails on what changed too much."""

import json as codec
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Terminal


def diff(
    before: Annotated[Path, typer.Argument(help="profile.json or its folder; or a run.json, or a calibration of it.")],
    after: Annotated[Path, typer.Argument(help="The same of later.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="A change that is too much, such as 'straggler>2%' or 'item_ids mean<-10%'. May be given several "
            "times; names are those of the table."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Compare two profiles, or two training runs: lengths, collisions, stragglers, costs.

    Shares change by points, amounts by percent, lengths by the largest distance of their distributions (0 to 1). Exit
    status: 1 if a change is more than --fail-if allows, else 0.
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.profile.diff import conditions, differences

        documents = [_read(path) for path in (before, after)]
        kinds = [document["kind"] for document in documents]
        if kinds[0] != kinds[1]:
            raise UsageError(f"{before} is a {kinds[0]} and {after} a {kinds[1]}: compare two of one kind")
        found = differences(*documents)
        limits = conditions(fail_if or [], found)
        rows = [[one.name, _shown(one.before, one), _shown(one.after, one), _unit(one), _change(one)] for one in found]
        terminal.table(f"From {before} to {after}", ["what", "before", "after", "unit", "change"], rows)
        for limit in limits:
            (quantity,) = (one for one in found if one.name == limit.name)
            if limit.holds(quantity):
                terminal.finding(f"{limit.name} changed by {_change(quantity)}: --fail-if '{limit.text}'")
        terminal.result({
            **header("diff"), "before": str(before), "after": str(after),
            "quantities": [
                {"name": one.name, "unit": one.unit, "before": one.before, "after": one.after, "change": one.change}
                for one in found
            ],
        })  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    """A profile, or the calibration of a run."""
    from freescale_tools.calibrate.calibration import calibrated_run
    from freescale_tools.simulate.command import read_profile

    file = path / "profile.json" if path.is_dir() else path
    try:
        document = codec.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "profile":
        return read_profile(file)
    return calibrated_run(file)


def _unit(one: Any) -> str:
    return "%" if one.unit == "share" else str(one.unit)


def _shown(value: float | None, one: Any) -> float | None:
    return 100 * value if value is not None and one.unit == "share" else value


def _change(one: Any) -> str:
    if one.change is None:
        return "-"
    if one.unit == "distance":
        return f"{one.change:.3f}"
    return f"{100 * one.change:+.1f} points" if one.unit == "share" else f"{one.change:+.1%}"
