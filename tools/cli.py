"""The command line: lists the commands, each from its own folder.

Exit status: 0 done; 1 something was found or failed; 2 the arguments, or the data they name, cannot be used.
"""

import typer

from freescale_tools.calibrate.command import calibrate
from freescale_tools.check.command import check
from freescale_tools.collisions.command import collisions
from freescale_tools.demo.command import demo
from freescale_tools.profile.command import profile
from freescale_tools.rewrite.catalog import catalog
from freescale_tools.rewrite.histories.command import histories
from freescale_tools.rewrite.optimize.command import optimize
from freescale_tools.simulate.command import simulate
from freescale_tools.synth.command import synth

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def freescale() -> None:
    """Find out what FreeScale brings for your data, and with which settings, before you book a GPU."""


for command in (profile, collisions, simulate, calibrate, optimize, histories, catalog, check, synth, demo):
    app.command()(command)
