"""Options that several commands read: what is understood, and what is refused with an example."""

import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.console.options import floats


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ([], None),
        (["128"], 128),
        (["item=128"], {"item": 128}),
        (["item=128,action=16", "a=b=8"], {"item": 128, "action": 16, "a=b": 8}),
    ],
)
def test_floats_of_an_event_or_of_columns(given, found):
    assert floats(given) == found


@pytest.mark.parametrize("given", [["x"], ["0"], ["1,2"], ["item=0"], ["item="], ["=8,item=8"], ["a=1", "a=2"], [""]])
def test_other_floats_are_refused_with_an_example(given):
    with pytest.raises(UsageError, match="as in item=128,action=16"):
        floats(given)
