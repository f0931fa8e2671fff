"""The command line: lists the commands, each from its own folder.

Exit status: 0 done; 1 something was found or failed; 2 the arguments, or the data they name, cannot be used.
"""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from freescale_tools.calibrate.command import calibrate
from freescale_tools.check.command import check
from freescale_tools.collisions.command import collisions
from freescale_tools.demo.command import demo
from freescale_tools.plan.command import plan
from freescale_tools.profile.command import profile, simulate
from freescale_tools.write.catalog import catalog
from freescale_tools.write.histories.command import histories
from freescale_tools.write.init import init
from freescale_tools.write.links import measure_links
from freescale_tools.write.optimize.command import optimize
from freescale_tools.write.synth.command import synth
from freescale_tools.write.warm import warm

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"freescale {version('freescale')}")
        raise typer.Exit()


@app.callback()
def freescale(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda asked: _version(asked=asked), is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Find out what FreeScale brings for your data, and with which settings, before you book a GPU."""


# Every command, with the example of its `--help`, on the files that the one of `synth` writes.
EXAMPLES: dict[Callable[..., None], str] = {
    profile: "freescale profile data/source-0 --sequence item_ids --time request_ts",
    collisions: "freescale collisions data/source-0 --ids item_ids --batch-size 64 --ranks 8",
    plan: "freescale plan tables.toml --profile freescale-report --calibration run.json --ranks 4 --batch-size 16",
    calibrate: "freescale calibrate run.json --skip 20 --out calibration.json",
    measure_links: "torchrun --nproc-per-node 8 --no-python freescale measure-links --out links.toml",
    optimize: "freescale optimize data/source-0 --out fast",
    histories: "freescale histories data/source-0 --by user_id --time request_ts --fields age_days --out histories",
    catalog: "freescale catalog data/source-0 --out source-0.catalog",
    init: "freescale init data/source-0",
    check: "freescale check data/source-0 --schema schema.toml",
    synth: "freescale synth sources data --median 1000 --p95 3500",
    warm: "freescale warm --fscomm",
    demo: "freescale demo --data data/source-0",
}
for command, example in EXAMPLES.items():
    about = inspect.getdoc(command) or ""
    first = " ".join(about.partition("\n\n")[0].split())
    # typer would cut what it shows in the list of commands; \b keeps the lines of a paragraph.
    app.command(short_help=first, epilog=f"\b\nExample:\n  {example}")(command)
app.command(hidden=True)(simulate)
