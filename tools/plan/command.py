"""The command `freescale plan`: reads its options, plans, writes the sharding plan and shows what it brings."""

import dataclasses
import functools
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import header, write_whole
from freescale_tools.console.options import BatchSize, CalibrationFile, HardwareName, MaxLength, ProfileFile
from freescale_tools.console.terminal import Terminal
from freescale_tools.plan.report import plan_blocks

if TYPE_CHECKING:
    from freescale_tools.plan.tables import Table

GIGABYTE = 1_000_000_000


def plan(
    tables: Annotated[
        str,
        typer.Argument(
            help="A TOML file with one [tables.NAME] of rows, dim and features each; or a TorchRec model as "
            "package.module:NAME, a module or a callable without arguments that returns one."
        ),
    ],
    profile: ProfileFile,
    ranks: Annotated[int, typer.Option(help="Ranks that the tables are shared by.")],
    hardware: HardwareName = "h100-ib",
    calibration: CalibrationFile = None,
    batch_size: BatchSize = None,
    max_length: MaxLength = None,
    way: Annotated[
        str, typer.Option(help="The way of training that the plan is best for: plain, sparse dist or prioritized.")
    ] = "sparse dist",
    device: Annotated[str, typer.Option(help="Where tables lie: cuda or cpu (gloo).")] = "cuda",
    memory: Annotated[float, typer.Option(help="GB of a rank, of which 85 % may hold tables and their buffers.")] = 80,
    rows: Annotated[
        bool, typer.Option("--rows/--no-rows", help="Read from the profiled files how often rows are used.")
    ] = True,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Plan for more ranks than rows are enough for, or than were calibrated."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the sharding plan is written, as JSON.")] = Path(
        "sharding-plan.json"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Choose how embedding tables are sharded, and on which ranks.

    TorchRec's planner searches; what it compares are steps of the calibrated model. Load what is written with
    freescale_tools.plan.torchrec.sharding.load_plan, for DistributedModelParallel(plan=...).
    """
    with Terminal(json=json) as terminal:
        numbers = {"--ranks": ranks, "--batch-size": batch_size, "--max-length": max_length, "--memory": memory}
        _check(numbers, way, device, out)
        document = _planned(
            _Asked(
                tables=tables, profile=profile, ranks=ranks, hardware=hardware, calibration=calibration,
                batch_size=batch_size, max_length=max_length, way=way, device=device, memory=memory, rows=rows,
                extrapolate=extrapolate,
            )
        )  # fmt: skip
        try:
            write_whole(out, dumps(document["sharding"], indent=1) + "\n")
        except OSError as error:
            raise CommandFailed(f"{out} cannot be written: {error.strerror}") from error
        terminal.show(plan_blocks(document))
        terminal.say(f"written: {out}")
        terminal.result(document)


def _check(numbers: Mapping[str, float | None], way: str, device: str, out: Path) -> None:
    from freescale_tools.plan.steps import SHOWN

    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be above 0, got {value}")
    if way not in SHOWN:
        raise UsageError(f"--way {way!r}: there are {', '.join(SHOWN)}")
    if device not in ("cuda", "cpu"):
        raise UsageError(f"--device {device!r}: cuda or cpu is needed")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: the folder {out.parent} is not there; make it first")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the user gave, as `plan` names it."""

    tables: str
    profile: Path
    ranks: int
    hardware: str
    calibration: Path | None
    batch_size: int | None
    max_length: int | None
    way: str
    device: str
    memory: float
    rows: bool
    extrapolate: bool


def _planned(asked: _Asked) -> dict[str, Any]:
    """The document of a plan."""
    from freescale_tools.calibrate.calibration import load_calibration
    from freescale_tools.model.hardware import calibrated, load_hardware
    from freescale_tools.model.simulation import within_reach
    from freescale_tools.model.workload import at_ranks, workload
    from freescale_tools.plan.access import with_lengths, with_uses
    from freescale_tools.plan.costs import Setting
    from freescale_tools.plan.document import document
    from freescale_tools.plan.steps import compute_ms, rated
    from freescale_tools.simulate.command import read_profile

    profile, ranks = read_profile(asked.profile), asked.ranks
    measured = load_calibration(asked.calibration) if asked.calibration else None
    machine = load_hardware(asked.hardware)
    machine = calibrated(machine, measured) if measured else machine
    load = workload(profile, batch_size=asked.batch_size, max_length=asked.max_length, calibration=measured)
    if not asked.extrapolate:
        profiled = sum(profile["sequences"][load.sequence]["histogram"]["counts"])
        within_reach([ranks], profiled, load.batch_size, measured, refuse=True)
    tables = with_lengths(_tables(asked.tables), profile, max_length=load.max_length)
    if asked.rows:
        tables = with_uses(tables, profile.get("paths", ()), [*profile["sequences"], *profile.get("candidates", {})])
    beside = at_ranks(load, profile, [ranks])
    setting = Setting(
        hardware=machine, ranks=ranks, batch_size=load.batch_size, reduce_all=asked.device == "cpu",
        lookup_ms_per_mb=_per_mb(measured.lookup_s if measured else None, load.dim),
        apply_ms_per_mb=_per_mb(measured.update_s if measured else None, load.dim),
    )  # fmt: skip
    planning = _planning()
    place = planning.Machine(
        device=asked.device,
        ranks_per_host=min(int(machine.gpus_per_host), ranks),
        memory_bytes=int(asked.memory * GIGABYTE),
    )
    compute, collision = compute_ms(machine, beside), beside.collision(ranks)
    rate = functools.partial(rated, compute=compute, collision=collision, way=asked.way)
    plans = {
        "chosen": planning.chosen_plan(tables, setting, place, rate),
        "torchrec": planning.default_plan(tables, setting, place),
    }
    from freescale_tools.plan.torchrec.sharding import as_document

    sharding = as_document(
        plans["chosen"].placed, ranks=ranks, device=asked.device, ranks_per_host=place.ranks_per_host
    )
    return {
        **header("plan"),
        "tables": asked.tables,
        "profile": str(asked.profile),
        "ranks": ranks,
        "batch_size": load.batch_size,
        "way": asked.way,
        "hardware": machine.name,
        "calibration": measured.source if measured else None,
        **document(plans, setting, beside),
        "sharding": sharding,
    }


def _per_mb(seconds: float | None, dim: float) -> float | None:
    """Milliseconds for 1e6 bytes of rows, from the seconds of the `dim` floats of an event; None: not measured."""
    from freescale_tools.model.durations import FLOAT

    return None if seconds is None else 1e3 * seconds / (FLOAT * dim) * 1e6


def _tables(spec: str) -> "tuple[Table, ...]":
    from freescale_tools.plan.tables import read_tables

    if ":" not in spec or Path(spec).exists():
        return read_tables(Path(spec))
    _planning()
    from freescale_tools.plan.torchrec.modules import named_model, tables_of

    return tables_of(named_model(spec), name=spec)


def _planning() -> Any:
    try:
        from freescale_tools.plan.torchrec import planning
    except ImportError as error:
        raise UsageError(
            f"planning needs torchrec, which cannot be imported: {error}. Install it as README, Installing, says"
        ) from error
    return planning
