"""What holds for every page: width, links, files, and messages that exist; and they can be built."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path

from pages import PAGES, ROOT, blocks, name, prose

import fscomm
import fsdata

_CODE = ("fsdata", "fscomm", "fsmeter", "fsranks", "tools")
_PATH = re.compile(r"`((?:fsdata|fscomm|fsmeter|fsranks|tools|benchmarks|tests|docs|requirements)/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
_ADDRESS = re.compile(r"\]\(https://[^)]*\)")
_REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def test_prose_is_not_wide():
    """Addresses of links are not counted: readers see the text of the link."""
    wide = [
        f"{name(page)}:{at}"
        for page in PAGES
        for at, line in enumerate(_ADDRESS.sub("]", prose(page)).splitlines(), 1)
        if len(line) > 110 and not line.startswith("|")
    ]
    assert wide == []


def test_every_block_names_its_language():
    known = {"python", "bash", "console", "toml", "text"}
    assert [name(page) for page in PAGES if {block.language for block in blocks(page)} - known] == []


def in_tree(target: str, page: Path) -> Path | None:
    """The file that a link leads to; of an address in the project's own repository the one in this tree, of any other
    address None."""
    if not target.startswith("https://"):
        return (page.parent / target).resolve() if target else page
    of_images = _REPOSITORY.replace("//github.com/", "//raw.githubusercontent.com/")
    for folder in (f"{_REPOSITORY}/blob/main/", f"{_REPOSITORY}/tree/main/", f"{of_images}/main/"):
        if target.startswith(folder):
            return ROOT / target.removeprefix(folder)
    assert not target.startswith((_REPOSITORY, of_images)) or target.startswith(f"{_REPOSITORY}/security/"), target
    return None


def test_the_readme_has_no_relative_link():
    """It is also the page of the project at a package index, which has none of these files."""
    links = _LINK.findall(prose(ROOT / "README.md"))
    assert len(links) > 20
    assert [target for target, _ in links if not target.startswith("https://")] == []


def test_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in _LINK.findall(prose(page)):
            file = in_tree(target, page)
            if file is None:
                continue
            assert file.exists(), f"{name(page)} links to {target}"
            if anchor and "api/" not in target:
                assert anchor[1:] in anchors(file), f"{name(page)} links to {target}{anchor}"


def test_files_that_are_named_exist():
    named = [(name(page), path) for page in PAGES for path in _PATH.findall(prose(page))]
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


@cache
def anchors(page):
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@cache
def texts_of_the_code() -> str:
    """Every text in the code, one a line; what is put into it later stands as an ellipsis."""
    found = []
    for folder in _CODE:
        for path in (ROOT / folder).rglob("*.py"):
            found += [_text(node) for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(text for text in found if text)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) if isinstance(value, ast.Constant) else "…" for value in node.values)
    return ""


def messages() -> list[str]:
    """The messages in the first column of the tables of the troubleshooting page."""
    rows = re.findall(r"^\| (.*?) \|", prose(ROOT / "docs" / "troubleshooting.md"), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]*)`", row) if " " in message]


def test_messages_that_are_explained_exist():
    parts = [part.strip() for message in messages() for part in message.split("…")]
    assert len(parts) > 60
    assert [part for part in parts if part not in texts_of_the_code()] == []


def options_named(page: Path) -> set[tuple[str, str]]:
    """(function or class, keyword) of the calls in inline code, such as `Join(on=...)`."""
    calls = set()
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse(code, mode="eval")):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    calls |= {(node.func.id, keyword.arg) for keyword in node.keywords if keyword.arg}
    return calls


def test_options_that_are_named_exist():
    """The docstrings are the reference of all options; pages name some of them."""
    package = {exported: package for package in (fscomm, fsdata) for exported in package.__all__}
    named = {
        (name(page), function, option)
        for page in PAGES
        if page.name != "CHANGELOG.md"  # which names options of older releases
        for function, option in options_named(page)
        if function in package
    }
    assert len(named) > 40
    unknown = [
        (page, function, option)
        for page, function, option in named
        if option not in inspect.signature(getattr(package[function], function)).parameters
    ]
    assert unknown == []


def test_the_pages_are_built_without_a_warning(tmp_path):
    """Not with --quiet: it hides warnings from --strict, too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api" / "fsdata.html").exists()
