"""Everything recorded in the golden files comes out again: orders, batches, saved states, plans, counts.

A difference means that saved states or experiments of users change. Where that is wanted, `make_golden.py` writes the
files anew. The names used are public ones, so that modules may move.
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_data import FILES
from golden_sections import RESUMED, SECTIONS, read

from freescale_tools.model import simulation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Parquet files in another place than where the golden files were made: no state may know the place."""
    return shutil.copytree(FILES, tmp_path_factory.mktemp("golden") / "elsewhere")


def differences(recorded: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where and how `now` differs. Floats may differ by their last digits, everything else not at all."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted(recorded.keys() | now.keys()):
            if key in recorded and key in now:
                yield from differences(recorded[key], now[key], f"{path} / {key}")
            else:
                yield f"{path} / {key}: {'no more' if key in recorded else 'not recorded'}"
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for place, pair in enumerate(zip(recorded, now, strict=True)):
            yield from differences(*pair, f"{path} / {place}")
    elif isinstance(recorded, float) and isinstance(now, float):
        if not math.isclose(recorded, now, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: {recorded!r} -> {now!r}"
    elif type(recorded) is not type(now) or recorded != now:
        yield f"{path}:\n    {recorded!r}\n -> {now!r}"


def check(recorded: Any, now: Any) -> None:
    found = list(differences(recorded, json.loads(json.dumps(now))))
    assert not found, f"{len(found)} differences, first:\n" + "\n".join(found[:8])


def names(of: Iterable[str], *long: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in long else []) for name in of]


@pytest.mark.parametrize("name", names(SECTIONS, "balanced_3"))
def test_what_was_recorded_comes_out_again(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "_DRAWS", 4)  # intervals of a simulation are not recorded, and take long
    check(read(name)["golden"], SECTIONS[name](folder))


@pytest.mark.parametrize("name", names(RESUMED, "states", "balanced_2", "balanced_3"))
def test_recorded_states_go_on_as_recorded(name: str, folder: Path) -> None:
    recorded = read(name)
    check(recorded["then"], RESUMED[name](folder, recorded["golden"]))
