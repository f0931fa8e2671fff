"""The command `freescale demo`: reads its options, runs it, and shows the result."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal
from fsdata.errors import FreeScaleError

if TYPE_CHECKING:
    from freescale_tools.demo.data import DemoData
    from freescale_tools.demo.ranks import Job
    from freescale_tools.demo.results import Outcome

COLLISIONS = (0.12, 0.8)  # share of ids: that of the paper, and that of the synthetic set
STEPS = 8  # of a run: both acts take about a minute on two cores
_LEAST_LINK_STEPS = 6  # TorchRec's pipeline has fetched two batches before its first step, and two steps warm up


def demo(
    data: Annotated[
        Path | None, typer.Option(help="A folder with your Parquet files. Default: a synthetic set.")
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            help="Aligned columns of integer lists, the item first: a,b,c. Default: those of the largest table."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Most events of a history; the last ones are kept. Default: 4096 with --data, else 21000."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a rank in a step. Default: depends on history lengths.")
    ] = None,
    requests: Annotated[
        bool, typer.Option(help="Train on the rows of a table of requests with histories as of their time, if any.")
    ] = True,
    link: Annotated[
        str,
        typer.Option(
            help="Speed of the link that all ranks share in the second act, such as 100mbit or 1gbit; none: no "
            "second act."
        ),
    ] = "100mbit",
    parts: Annotated[
        int,
        typer.Option(help="In how many parts steps are computed on the link, too, at most 64. 1: in one piece only."),
    ] = 4,
    zch: Annotated[
        bool, typer.Option("--zch", help="Train twice more, with tables behind managed collision, and evictions.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = STEPS,
    ranks: Annotated[int, typer.Option(help="Number of training processes, one core each.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic set and of the model.")] = 0,
    folder: Annotated[Path, typer.Option(help="Folder for the synthetic set and the picture.")] = Path(
        "freescale-demo"
    ),
) -> None:
    """Train a small model with and without FreeScale, in two acts, and say what each remedy brings or costs.

    First on links of memory: plain, prioritized, balanced, both. Then on a slow link: plain, TorchRec's pipeline,
    prioritized, prioritized in parts. --zch also trains with fewer rows than ids.
    """
    with Terminal() as terminal:
        numbers = {
            "--max-length": max_length,
            "--batch-size": batch_size,
            "--parts": parts,
            "--steps": steps,
            "--ranks": ranks,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if sequence is not None and data is None:
            raise UsageError("--sequence names columns of --data; the synthetic set needs none")

        from freescale_tools.demo.data import BATCH, synthetic
        from freescale_tools.demo.discover import MAX_LENGTH, discover
        from freescale_tools.demo.link import parse_link
        from freescale_tools.write.synth.presets import Lengths, demo_set
        from fscomm.parts.number_of_parts import MOST_PARTS

        if parts > MOST_PARTS:
            raise UsageError(f"--parts must be at most {MOST_PARTS}, got {parts}: each is one more pass of the model")
        try:
            mbit = None if link == "none" else parse_link(link)
        except ValueError as error:
            raise UsageError(f"--link takes none, or {error}") from error
        if data is None:
            terminal.say(f"writing the synthetic set to {folder}")
            try:
                files = demo_set(folder, seed=seed)
            except OSError as error:
                raise CommandFailed(f"cannot write to {folder}: {error}") from error
            found = synthetic(files, batch_size=batch_size or BATCH, max_length=max_length or Lengths().clip)
        else:
            fields = tuple(name.strip() for name in (sequence or "").split(",") if name.strip())
            try:
                found = discover(
                    data,
                    sequence=fields,
                    max_length=max_length or MAX_LENGTH,
                    batch_size=batch_size,
                    world_size=ranks,
                    requests=requests,
                )
            except (FreeScaleError, OSError) as error:
                raise UsageError(f"{data}: {error}") from error
        run(
            terminal, found, folder, steps=steps, ranks=ranks, seed=seed, parts=parts, zch=zch, mbit=mbit,
            own_data=data is not None,
        )  # fmt: skip


def run(
    terminal: Terminal,
    data: "DemoData",
    folder: Path,
    *,
    steps: int = STEPS,
    ranks: int = 2,
    seed: int = 0,
    parts: int = 4,
    zch: bool = False,
    mbit: float | None = 100.0,
    own_data: bool = False,
) -> "Outcome":
    """Train on processes of this machine, print what came out, and draw the picture into `folder`.

    `mbit`: Mbit/s of the link of the second act; None: there is none. It trains on sets that collide at stated rates,
    with `own_data` on shorter histories of `data`. With `zch` the first act trains twice more with tables behind
    managed collision.

    Raises UsageError if there are too few samples or steps, and CommandFailed if a rank fails, if runs differ that must
    be equal, or if `zch` evicts nothing.
    """
    from freescale_tools.demo.data import some_lengths
    from freescale_tools.demo.link import open_link
    from freescale_tools.demo.picture import draw
    from freescale_tools.demo.ranks import Job
    from freescale_tools.demo.results import STEPS_PER_HOUR
    from freescale_tools.demo.screen import balancing_sentence, communication_sentence, show, show_maps

    steps = min(steps, data.rows // (ranks * data.batch_size))
    if zch and steps < 2 * STEPS_PER_HOUR:
        raise UsageError(
            f"--zch needs {2 * STEPS_PER_HOUR} steps, the data and --steps give {steps}: ids expire when an hour is "
            f"over, {STEPS_PER_HOUR} steps; give more --steps or a smaller --batch-size"
        )
    job = Job(data=data, steps=steps, parts=parts, zch=zch, seed=seed)
    if mbit is not None:
        link = open_link(mbit)
        link_data = sets_of_the_link(data, folder, own_data=own_data, steps=steps, ranks=ranks, parts=parts, seed=seed)
        job = replace(job, link=link, link_data=link_data, link_steps=link_steps(link_data, steps, ranks))
        terminal.say(link.how())
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        terminal.say(
            f"other programs use these {cores} cores (load {load:.1f} in the last minute): times will be noisy"
        )
    terminal.say(f"{data.name}: {data.rows:,} samples, {steps} steps of {ranks} x {data.batch_size}")
    for note in data.notes:
        terminal.say(f"  {note}")
    outcome = trained(job, ranks)
    picture = folder / f"{data.picture}.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw(outcome, picture, title=f"Steps of {ranks} ranks, {data.name}")
    except OSError as error:
        terminal.finding(f"cannot write {picture}: {error}")
    show(outcome, terminal)
    if zch:
        show_maps(outcome, terminal)
    terminal.say(f"picture: {picture}")
    terminal.say(balancing_sentence(outcome, some_lengths(data), data.batch_size))
    if outcome.communication:
        terminal.say(communication_sentence(outcome, parts))
    return outcome


def sets_of_the_link(
    data: "DemoData", folder: Path, *, own_data: bool, steps: int, ranks: int, parts: int, seed: int
) -> tuple[tuple[float | None, "DemoData"], ...]:
    """(collision rate, set) of the second act. Own data collide as they do. Writes the others into `folder`."""
    from freescale_tools.demo.data import LINK_BATCH, colliding, lighter

    if own_data:
        light = lighter(data, at_least=parts)
        if parts > light.batch_size:
            raise UsageError(
                f"--parts {parts} cuts the samples that a rank has in a step, which are {light.batch_size} here: give "
                f"--batch-size {parts} or more, fewer parts, or --link none"
            )
        return ((None, light),)
    size = max(LINK_BATCH, parts)
    try:
        return tuple(
            (rate, colliding(folder, rate, ranks=ranks, batch_size=size, steps=steps, seed=seed)) for rate in COLLISIONS
        )
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error}") from error


def link_steps(sets: tuple[tuple[float | None, "DemoData"], ...], steps: int, ranks: int) -> int:
    """Steps of a run of the second act. Raises UsageError if there are too few to measure."""
    found = min(steps, *(data.rows // (ranks * data.batch_size) for _, data in sets))
    if found < _LEAST_LINK_STEPS:
        raise UsageError(
            f"the runs on the link need {_LEAST_LINK_STEPS} steps, the data and --steps give {found}: give more "
            "--steps, a smaller --batch-size, or --link none"
        )
    return found


def trained(job: "Job", ranks: int) -> "Outcome":
    """Run the job on ranks of this machine, where the link can be shaped. Raises CommandFailed if one fails."""
    from freescale_tools.demo.ranks import read_outcome

    with tempfile.TemporaryDirectory(prefix="freescale-demo-") as place:
        job.save(Path(place))
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *launch, "-m", "freescale_tools.demo.ranks", place]
        settings = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # of names that the namespace lacks
        if job.link is not None:
            command = job.link.inside(command)
            settings |= {"GLOO_SOCKET_IFNAME": "lo"} if job.link.shaped else {}
        launcher = subprocess.Popen(command, env=os.environ | settings)
        try:
            with exits_when_terminated():
                status = launcher.wait()
        finally:  # also after Ctrl-C: the launcher ends its ranks when it is asked to end
            launcher.terminate()
            launcher.wait()
        if status:
            raise CommandFailed(f"training failed with status {status}; the error of the rank is above")
        return read_outcome(Path(place))


@contextmanager
def exits_when_terminated() -> Iterator[None]:
    """SIGTERM raises SystemExit in this block, so that it cleans up as after Ctrl-C. For the main thread only."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
