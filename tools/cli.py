"""The command line: lists the commands, each from its own folder.

Exit status: 0 done; 1 something was found or failed; 2 the arguments, or the data they name, cannot be used.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from freescale_tools.calibrate.command import calibrate
from freescale_tools.check.command import check
from freescale_tools.collisions.command import collisions
from freescale_tools.demo.command import demo
from freescale_tools.model.command import simulate
from freescale_tools.plan.command import plan
from freescale_tools.profile.command import profile
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


for command in (
    profile, collisions, simulate, plan, calibrate, measure_links, optimize, histories, catalog, init, check,
    synth, warm, demo,
):  # fmt: skip
    app.command()(command)
