"""The measured figures of README and docs: `make figures` wrote them, from records that say how they were measured."""

import datetime
import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from cogapp import Cog
from pages import PAGES, ROOT, prose

sys.path.append(str(ROOT / "benchmarks"))
import figures
from common.table import RESULTS
from figures import ages, pictures, svg

_GENERATED = re.compile(r"<!-- \[\[\[cog .*?\[\[\[end\]\]\] -->", re.DOTALL)
_FIGURE = re.compile(r"\d[\d,.]*\s?(?:%|m?s|us|x|times|[kKMG]i?B)(?![\w/])")
SETTINGS = {
    "README.md": [],
    "docs/performance.md": ["12 %"],
}


def test_pages_say_what_the_records_say(monkeypatch):
    """As `make figures` writes them. If this fails, a record, an example or a block of a page was changed by hand."""
    monkeypatch.delenv("EXAMPLES", raising=False)
    monkeypatch.chdir(ROOT)
    Cog().callable_main(["cog", "--check", "--diff", *made_by_figures()])


def made_by_figures() -> list[str]:
    """The arguments of cog in `make figures`, but for `-r`."""
    make = subprocess.run(
        ["make", "-n", "--no-print-directory", "figures"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (cog,) = (line for line in make.stdout.splitlines() if "/cog " in line)
    _, replace, *arguments = shlex.split(cog)
    assert replace == "-r"
    return arguments


@pytest.mark.long
def test_pages_show_what_their_commands_print(monkeypatch):
    pages = [page for page in PAGES if re.search(r"^<!-- \[\[\[cog examples\.output\(", page.read_text(), re.MULTILINE)]
    assert len(pages) > 0
    monkeypatch.setenv("EXAMPLES", "1")
    monkeypatch.chdir(ROOT)
    options = [each for each in made_by_figures() if not each.endswith(".md")]
    Cog().callable_main(["cog", "--check", "--diff", *options, *map(str, pages)])


def test_pictures_show_what_the_records_say():
    """As `make figures` draws them, and every one stands in a page."""
    drawn = {each.name: each for each in (made() for made in (*pictures.PICTURES, *pictures.TIMELINES))}
    files = {path.stem: svg.numbers_in(path) for path in svg.IMAGES.glob("*.svg")}
    assert files == {name: picture.written() for name, picture in drawn.items()}
    pages = "".join(path.read_text() for path in PAGES)
    assert [name for name in drawn if f"images/{name}.svg" not in pages] == []


def records_read(page):
    """The files in benchmarks/results that the blocks and the pictures of a page are made from. Examples read none."""
    text, found, read = page.read_text(), set(), Path.read_text

    def noted(path, *arguments, **options):
        if path.is_relative_to(RESULTS):
            found.add(path)
        return read(path, *arguments, **options)

    names = {name: importlib.import_module(f"figures.{name}") for name in figures.__all__}
    shown = [made for made in (*pictures.PICTURES, *pictures.TIMELINES) if f"images/{made().name}.svg" in text]
    with mock.patch.object(Path, "read_text", noted):
        for code in re.findall(r"\[\[\[cog (?!examples\.)(.*?) \]\]\]", text):
            exec(code, dict(names))
        for made in shown:
            made()
    return found


def test_every_record_is_behind_a_figure():
    """Or is compared with predictions in one that is, which names the file. Git ignores partial ones."""
    read = set().union(*map(records_read, PAGES))
    compared = json.loads((RESULTS / "adviser.json").read_text())["data"]
    inputs = {RESULTS / name for name in re.findall(r"\w+\.json", compared)}
    assert set(RESULTS.rglob("*.json")) - set(RESULTS.rglob("*-partial*.json")) == read | inputs


def test_what_measures_first_figures_is_named():
    """With the packages that it measures, whose commits say how old the record is."""
    first = records_read(ROOT / "README.md") | records_read(ROOT / "docs/index.md")
    assert set(ages.MEASURED) == {path.stem for path in first}
    assert [name for packages in ages.MEASURED.values() for name in packages if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("page", SETTINGS)
def test_figures_outside_generated_blocks_are_settings(page):
    """Limits, goals and what a benchmark was given: everything that was measured stands in a block of cog's."""
    text = re.sub(r"`[^`]*`", "", _GENERATED.sub("", prose(ROOT / page)))
    assert sorted(set(_FIGURE.findall(text))) == sorted(SETTINGS[page])


def test_a_record_says_how_it_was_measured():
    for path in RESULTS.glob("*.json"):
        record = json.loads(path.read_text())
        assert record["name"] == path.stem
        assert re.match(r"(python benchmarks/\w+\.py|freescale |make )", record["command"]), path
        assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", record["commit"]), path
        assert datetime.datetime.fromisoformat(record["date"]).tzinfo is not None, path
        assert record["data"], path
        assert record["machine"]["cores"] >= 1, path
