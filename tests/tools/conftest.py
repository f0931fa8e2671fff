"""For tests of commands."""

import pytest

from freescale_tools.model import batches, simulation


@pytest.fixture(autouse=True, scope="module")
def few_draws():
    """Intervals of a verdict come from few draws: most of the time of a simulation goes into draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_DRAWS", 4)
        yield


@pytest.fixture(scope="module")
def few_samples():
    """Points of a grid are means over few samples: for tests of what is made of the points."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_SAMPLES", 2048)
        yield
