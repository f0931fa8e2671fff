"""Training loops as users write them; each is run with and without fscomm and must give the same bits.

A loop takes a `Run` and may use `run.enable()`, `run.loader()`, the model and the optimizer. It records what a user
could look at. `LOOPS` names them all.
"""

import exact_loops_blocks
import exact_loops_graphs
import exact_loops_loaders
import exact_loops_passes
import exact_loops_people
import exact_loops_state
from exact import Loop
from exact_loops_blocks import base
from exact_loops_state import state_dict_everywhere

__all__ = ["LOOPS", "base", "state_dict_everywhere"]

LOOPS: dict[str, Loop] = {
    **exact_loops_blocks.loop,
    **exact_loops_passes.loop,
    **exact_loops_state.loop,
    **exact_loops_graphs.loop,
    **exact_loops_loaders.loop,
    **exact_loops_people.loop,
}
