"""Everything recorded in the golden files comes out again: orders, batches, saved states, plans, counts.

A difference means that saved states or experiments of users change. Where that is wanted, `make_golden.py` writes the
files anew. The names used are public ones, so that modules may move.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from golden_changes import differences
from golden_data import FILES
from golden_sections import RESUMED, SECTIONS, kept, read

from freescale_tools.model import simulation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Parquet files in another place than where the golden files were made: no state may know the place."""
    return shutil.copytree(FILES, tmp_path_factory.mktemp("golden") / "elsewhere")


def check(name: str, recorded: Any, now: Any) -> None:
    found = list(differences(recorded, now))
    how = f"`python tests/golden/golden_changes.py {name}` shows what differs behind a digest"
    assert not found, f"{len(found)} differences of {name} ({how}), first:\n" + "\n".join(found[:8])


def names(of: Iterable[str], *long: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in long else []) for name in of]


@pytest.mark.parametrize("name", names(SECTIONS, "balanced_3"))
def test_what_was_recorded_comes_out_again(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "_DRAWS", 4)  # intervals of a simulation are not recorded, and take long
    check(name, read(name)["golden"], kept(name, SECTIONS[name](folder)))


@pytest.mark.parametrize("name", names(RESUMED, "states", "balanced_2", "balanced_3"))
def test_recorded_states_go_on_as_recorded(name: str, folder: Path) -> None:
    recorded = read(name)
    check(name, recorded["then"], kept("then", RESUMED[name](folder, recorded["golden"])))
