"""The command `freescale plan`: reads its options, plans, writes the sharding plan and shows what it brings."""

import functools
import math
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header, write_whole
from freescale_tools.console.options import BatchSize, CalibrationFile, HardwareName, MaxLength, ProfileFile
from freescale_tools.console.terminal import Terminal


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
        str, typer.Option(help="The training loop that the plan is for: plain, sparse dist or prioritized.")
    ] = "sparse dist",
    device: Annotated[str, typer.Option(help="Device of the tables: cuda or cpu (gloo).")] = "cuda",
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

    TorchRec defines how a table can be cut. The search begins with its plan, and compares plans by the steps of the
    calibrated model. Load the result with freescale_tools.plan.torchrec.load_plan, for
    DistributedModelParallel(plan=...).
    """
    with Terminal(json=json) as terminal:
        from freescale_tools.calibrate.calibration import load_calibration
        from freescale_tools.model.batches import check_ranks
        from freescale_tools.model.durations import FLOAT
        from freescale_tools.model.hardware import calibrated, load_hardware
        from freescale_tools.model.profiles import read_profile
        from freescale_tools.model.workload import at_ranks, samples_of, workload
        from freescale_tools.plan.costs import SHOWN, Setting, rated
        from freescale_tools.plan.report import compute_ms, document, plan_blocks
        from freescale_tools.plan.tables import read_tables, with_lengths, with_uses

        numbers = {"--ranks": ranks, "--batch-size": batch_size, "--max-length": max_length, "--memory": memory}
        for name, value in numbers.items():
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}")
        if math.isinf(memory):
            raise UsageError("--memory must be a number of GB, got inf")
        if way not in SHOWN:
            raise UsageError(f"--way {way!r}: there are {', '.join(SHOWN)}")
        if device not in ("cuda", "cpu"):
            raise UsageError(f"--device {device!r}: cuda or cpu is needed")
        if not out.parent.is_dir():
            raise UsageError(f"--out {out}: the folder {out.parent} is not there; make it first")
        try:
            from freescale_tools.plan import torchrec
        except ImportError as error:
            raise UsageError(
                f"planning needs torchrec, which cannot be imported: {error}. Install it as README, Installing, says"
            ) from error

        profiled = read_profile(profile)
        measured = load_calibration(calibration) if calibration else None
        machine = load_hardware(hardware)
        machine = calibrated(machine, measured) if measured else machine
        load = workload(profiled, batch_size=batch_size, max_length=max_length, calibration=measured)
        samples = samples_of(profiled)
        if not extrapolate:
            most = measured.ranks if measured else None
            check_ranks(ranks, samples.histogram.rows, load.batch_size, measured=most)
        is_model = ":" in tables and not Path(tables).exists()
        given = torchrec.tables_of(torchrec.named_model(tables), name=tables) if is_model else read_tables(Path(tables))
        known = with_lengths(given, profiled, max_length=load.max_length)
        if rows:
            columns = [*profiled["sequences"], *profiled.get("candidates", {})]
            known = with_uses(known, profiled.get("paths", ()), columns)
        method = (profiled.get("recommended") or {}).get("method", "fbs+swap")
        load = at_ranks(load, samples, [ranks], method=method)
        # A calibration has the seconds of an event, of as many floats as its run exchanged, whatever the profile says.
        of_event = (measured.lookup_s, measured.update_s) if measured else (None, None)
        floats = measured.dim if measured and measured.dim else load.dim
        lookup, apply = (None if one is None else 1e3 * one / (FLOAT * floats) * 1e6 for one in of_event)
        setting = Setting(
            hardware=machine,
            ranks=ranks,
            batch_size=load.batch_size,
            device="cpu" if device == "cpu" else "cuda",
            memory_bytes=int(memory * 1e9),
            lookup_ms_per_mb=lookup,
            apply_ms_per_mb=apply,
        )
        rate = functools.partial(rated, compute=compute_ms(machine, load), collision=load.collision(ranks), way=way)
        usual = torchrec.default_plan(known, setting)
        plans = {"chosen": torchrec.chosen_plan(usual, setting, rate), "torchrec": usual}
        found = {
            **header("plan"),
            "tables": tables,
            "profile": str(profile),
            "ranks": ranks,
            "batch_size": load.batch_size,
            "way": way,
            "hardware": machine.name,
            "calibration": measured.source if measured else None,
            **document(plans, setting, load),
            "sharding": torchrec.as_document(plans["chosen"], setting),
        }
        write_whole(out, dumps(found["sharding"], indent=1) + "\n")
        terminal.show(plan_blocks(found))
        terminal.say(f"written: {out}")
        terminal.result(found)
