"""The command line: one command per file of `commands/`.

Exit status: 0 done, 1 findings or a failure while running, 2 the arguments or the data they name cannot be used.
"""

import typer

from .commands.calibrate import calibrate
from .commands.check import check
from .commands.collisions import collisions
from .commands.demo import demo
from .commands.optimize import optimize
from .commands.profile import profile
from .commands.simulate import simulate
from .commands.synth import synth

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def freescale() -> None:
    """What FreeScale will bring for your data, and with which settings: before any GPU is booked."""


for command in (profile, collisions, simulate, calibrate, optimize, check, synth, demo):
    app.command()(command)
