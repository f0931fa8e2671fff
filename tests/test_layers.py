"""What each part of the project may import, read from the source and seen in new processes."""

import ast
import graphlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import without

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "fscomm": ROOT / "fscomm",
    "fsdata": ROOT / "fsdata",
    "fsmeter": ROOT / "fsmeter",
    "fsranks": ROOT / "fsranks",
    "freescale_tools": ROOT / "tools",
}
OURS = ("fsdata", "fscomm", "fsmeter", "fsranks", "freescale_tools")


def _named(package: str, root: Path) -> dict[str, Path]:
    """Full name -> file. The name of a package stands for its `__init__.py`."""
    paths = sorted(root.rglob("*.py"))
    named = {".".join([package, *path.relative_to(root).with_suffix("").parts]): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = {name: path for package, root in PACKAGES.items() for name, path in _named(package, root).items()}


@cache
def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere, also inside functions."""
    return _imported(path, ast.walk(ast.parse(path.read_text())))


@cache
def imports_on_call(path: Path) -> set[str]:
    """Those that it imports inside functions, or for type checkers, and nowhere else."""
    return imports(path) - _imported(path, ast.parse(path.read_text()).body)


def _imported(path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inside if inside <= MODULES.keys() else inside | {node.module}
    return names


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, its first node repeated at the end; empty if there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def files(package: str, under: str = "") -> list[Path]:
    return sorted((PACKAGES[package] / under).rglob("*.py"))


def violations(paths: list[Path], *, forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    def inside(name: str, modules: tuple[str, ...]) -> bool:
        return any(name == module or name.startswith(module + ".") for module in modules)

    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in sorted(imports(path))
        if inside(name, forbidden) and not inside(name, allowed)
    ]


@pytest.mark.parametrize(
    ("package", "under", "forbidden", "allowed"),
    [
        ("fsdata", "", ("fscomm", "fsmeter", "freescale_tools"), ()),
        ("fscomm", "", ("fsdata", "freescale_tools"), ()),
        ("fsmeter", "", ("fsdata", "fscomm", "freescale_tools", "torchrec"), ()),
        ("fsranks", "", ("fsdata", "fscomm", "fsmeter", "freescale_tools", "torchrec"), ()),
        ("fsdata", "balance/packing", ("torch", "pyarrow", "polars"), ()),
        ("fsdata", "balance/exchange", ("fsdata.balance.packing", "fsdata.balance.cost"), ()),
    ],
)
def test_arrows_point_one_way(package, under, forbidden, allowed):
    assert files(package, under), under
    assert violations(files(package, under), forbidden=forbidden, allowed=allowed) == []


ON_EVERY_LISTING = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}

# A part may import from itself and from the lines above it.
IN_ORDER = {
    "freescale_tools": (
        ("report",),
        ("console",),
        ("scan",),
        ("collisions", "calibrate", "check"),
        ("model",),
        ("write",),
        ("profile", "plan", "demo"),
        ("cli",),
    ),
    "fsdata": (
        ("errors", "kernels"),
        ("options",),
        ("schema",),
        ("sources",),
        ("catalog",),
        ("decode",),
        ("order", "batch"),
        ("compose",),
        ("nodes",),
        ("loader",),
    ),
    "fscomm": (
        ("errors", "device", "plan"),
        ("compose",),
        ("report",),
        ("transports", "loop"),
        ("tables",),
        ("exchange",),
        ("engine",),
        ("comm",),
        ("pipeline",),
    ),
    "fsmeter": (
        ("intervals",),
        ("lengths", "clocks", "notes"),
        ("calls",),
        ("meter", "trace"),
        ("prometheus",),
    ),
}


# Folders beside the core of a package, and which others each may import.
EXTENSIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "fsdata": {
        "balance": (),
        "embedding": ("balance",),
        "growing": ("tables",),
        "histories": (),
        "lake": (),
        "pages": (),
        "remote": (),
        "sampling": (),
        "setup": ("histories", "tables"),
        "tables": (),
        "tensors": ("balance",),
        "views": (),
    },
    "fscomm": {
        "bags": (),
        "codecs": (),
        "managed": ("verify",),
        "parts": (),
        "recipes": (),
        "two_levels": (),
        "verify": (),
    },
}
# Files that compose extensions, in functions only; and `__init__.py`, which has names of users.
COMPOSES = {
    "fsdata": {"__init__.py", "compose/batching.py", "compose/reading.py", "compose/stepping.py"},
    "fscomm": {"__init__.py", "comm.py", "compose.py", "engine/agreement.py"},
}


@pytest.mark.parametrize(
    ("package", "extension"), [(package, extension) for package, each in EXTENSIONS.items() for extension in each]
)
def test_an_extension_is_imported_by_those_that_say_so(package, extension):
    root, extensions = PACKAGES[package], EXTENSIONS[package]
    allowed = {extension, *(other for other, imported in extensions.items() if extension in imported)}
    name = f"{package}.{extension}"
    found = {
        path.relative_to(root).as_posix()
        for path in files(package)
        if any(each == name or each.startswith(f"{name}.") for each in imports(path))
    }
    found = {each for each in found if each.split("/")[0] not in allowed} - COMPOSES[package]
    assert found == set()
    for path in (root / each for each in COMPOSES[package] - {"__init__.py"}):
        assert {each for each in imports(path) if each.startswith(name)} <= imports_on_call(path)


# Extensions of fscomm that are no folders of its own, and where it composes them, in functions only.
INNER_EXTENSIONS = {
    "pipeline": "",
    "transports.ring": "transports/opening.py",
    "transports.staged": "transports/opening.py",
}


@pytest.mark.parametrize("extension", INNER_EXTENSIONS)
def test_the_core_of_fscomm_imports_an_extension_where_it_is_composed(extension):
    root, name = PACKAGES["fscomm"], f"fscomm.{extension}"
    inside = tuple(f"fscomm.{each}." for each in INNER_EXTENSIONS)
    for module, path in MODULES.items():
        if module.split(".")[0] != "fscomm" or f"{module}.".startswith(inside):
            continue
        found = {each for each in imports(path) if f"{each}.".startswith(f"{name}.")}
        assert not found or path == root / INNER_EXTENSIONS[extension], f"{module} imports {found}"
        assert found <= imports_on_call(path)


def names_of_extensions() -> set[str]:
    """Public names that lead to an extension. `fsdata.Batch` does not: it is the core's where `views` is deleted."""
    from fsdata import _WHERE, nodes

    given = {f"fsdata.{name}": where for name, where in _WHERE.items()}
    given |= {f"fsdata.nodes.{name}": where for name, where in nodes._OF_EXTENSIONS.items()}
    found = {name for name, where in given.items() if where.split(".")[1] in EXTENSIONS["fsdata"]}
    return found | {"fscomm.cpu_kernels"}


def test_every_extension_is_deleted_by_make_test_without():
    deleted = {package: {each.replace("/", ".") for each in each_of} for package, each_of in without.EXTENSIONS.items()}
    assert deleted["fsdata"] == {*EXTENSIONS["fsdata"]}
    assert deleted["fscomm"] == {*EXTENSIONS["fscomm"], *INNER_EXTENSIONS}


@pytest.mark.parametrize("package", without.CORE_TESTS)
def test_tests_of_the_core_use_no_extension(package):
    """Neither do the modules of tests that they import. `make test-without` runs them where an extension is deleted."""
    beside = {path.stem: path for path in (ROOT / "tests").rglob("*.py") if path.stem != "conftest"}
    named = [ROOT / name for name in without.CORE_TESTS[package]]
    found = [path for each in named for path in ([each] if each.is_file() else sorted(each.rglob("*.py")))]
    found += [ROOT / "tests/conftest.py", ROOT / "tests/data/conftest.py"]
    for path in found:  # grows
        found += [beside[name] for name in sorted(imports(path) & beside.keys()) if beside[name] not in found]
    extensions = [f"{of}.{each.replace('/', '.')}" for each, of in without.PACKAGES.items()]
    assert violations(found, forbidden=(*extensions, *sorted(names_of_extensions()))) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_itself_by_way_of_others(package):
    """Imports inside functions count, too."""
    known = _named(package, PACKAGES[package])
    arrows = {name: imports(path) & known.keys() - {name} for name, path in known.items()}
    assert circle(arrows) == []


@pytest.mark.parametrize("package", IN_ORDER)
def test_parts_import_in_one_direction(package):
    before: set[str] = set()
    beside = set(EXTENSIONS.get(package, ()))
    for level in IN_ORDER[package]:
        for part in level:
            allowed = tuple(f"{package}.{name}" for name in before | beside | {part})
            paths = files(package, part) or [PACKAGES[package] / f"{part}.py"]
            assert violations(paths, forbidden=(package,), allowed=allowed) == []
        before |= set(level)
    entries = {entry.stem for entry in PACKAGES[package].iterdir() if entry.name not in ON_EVERY_LISTING}
    assert {entry for entry in entries if not entry.startswith(".")} == before | beside


def test_cost_models_know_only_arrays():
    assert violations([ROOT / "fsdata/balance/cost.py"], forbidden=(*OURS, "torch"), allowed=("fsdata.options",)) == []


@pytest.mark.parametrize(
    ("package", "places"),
    [("fsdata", ("batch/torchrec_binding.py",)), ("fscomm", ("tables/torchrec", *EXTENSIONS["fscomm"]))],
)
def test_torchrec_is_imported_in_one_place(package, places):
    """And by extensions of fscomm."""
    theirs = {"torchrec", "fbgemm_gpu"}
    inside = [path for path in files(package) if any(name.split(".")[0] in theirs for name in imports(path))]
    assert inside
    allowed = [PACKAGES[package] / each for each in places]
    assert [path for path in inside if not any(map(path.is_relative_to, allowed))] == []


def test_fscomm_does_not_import_fsmeter():
    """Only a name of fscomm's leads to it."""
    paths = [path for path in files("fscomm") if path != PACKAGES["fscomm"] / "__init__.py"]
    assert violations(paths, forbidden=("fsmeter",)) == []


UNPICKLING = re.compile(r"\bdist(ributed)?\.\w*object\w*\(|\btorch\.load\(|allow_pickle=True|weights_only=False")


def test_nothing_is_unpickled():
    """Not by torch's collectives of objects, either. SECURITY.md names the exception: ranks that the demo starts."""
    paths = [path for package in PACKAGES for path in files(package)]
    found = violations(paths, forbidden=("pickle", "cloudpickle", "dill", "marshal", "shelve"))
    assert found == ["tools/demo/ranks.py imports pickle"]
    found = [path.relative_to(ROOT).as_posix() for path in paths if UNPICKLING.search(path.read_text())]
    assert found == ["tools/demo/train.py"]


def test_planning_and_kernels_start_no_threads_and_send_nothing():
    pure = files("fscomm", "plan") + files("fsdata", "order") + files("fsdata", "balance/packing")
    pure += [path for path in files("fsdata") if path.parent.name == "kernels"]
    of_fscomm = ("engine/table_order", "exchange/operations", "exchange/stream_order", "transports/cutting")
    of_fscomm += ("managed/zero_collision",)
    pure += [ROOT / "fscomm" / f"{name}.py" for name in of_fscomm]
    for path in pure:
        forbidden = {"threading", "queue", "torch.distributed", "fscomm.engine.engine", "fscomm.transports.transport"}
        assert not forbidden & imports(path), path


LARGE = {"torchrec", "triton", "fbgemm_gpu", "pandas", "pyarrow", "polars", "torchdata"}


@pytest.mark.parametrize(
    "imported",  # one after the other in one process, each with what is not loaded then
    [
        [
            ("fscomm, fsdata", {"fsmeter", *LARGE}),
            ("fsmeter", LARGE),
        ],
        [
            ("freescale_tools.cli", {"torch", "numba", "pyarrow"}),
            ("fsdata.balance.options, fsdata.order.deal", {"torch"}),  # planning alone
            ("freescale_tools.check.source_check", {"torch"}),
            (
                "freescale_tools.collisions.estimate, freescale_tools.scan.histories, freescale_tools.scan.discover",
                {"torch"},
            ),
        ],
    ],
    ids=["packages", "commands"],
)
def test_nothing_is_imported_that_is_not_used(imported):
    code = "import sys\n"
    for modules, absent in imported:
        code += f"import {modules}\nfound = {absent} & set(sys.modules)\nassert not found, ({modules!r}, found)\n"
    subprocess.run([sys.executable, "-c", code], check=True)


NOT_ON_A_BARE_GPU_MACHINE = (
    *("torchrec", "fbgemm_gpu", "torchdata", "pyarrow", "polars", "rich", "hypothesis", "psutil", "typer"),
    *("matplotlib", "plotly", "ray", "pandas", "cuda", "nccl"),
)


def run_without(modules: tuple[str, ...], code: str, **environment: str) -> str:
    """What Python prints where these modules are not installed."""
    missing = f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
    command = [sys.executable, "-c", missing + code]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_a_bare_gpu_machine_runs_imports_with_torch_and_numba_only():
    """Transports and kernels, and the benchmarks of `make gpu`."""
    kernels = {name for name in MODULES if re.match(r"fsdata\.(\w+\.)?kernels\b", name)}
    kernels -= {"fsdata.kernels.ranges_triton"}
    transports = {name for name in MODULES if name.startswith("fscomm.transports")}
    wanted = sorted(kernels | transports | {"fsdata", "fscomm", "fscomm.device"})
    code = f"import importlib\nsys.modules['triton'] = None\nfor name in {wanted}: importlib.import_module(name)\n"
    code += "del sys.modules['triton']\nsys.path += ['benchmarks', 'benchmarks/parts']\n"
    code += "import contention, gpu, gpu_probe, kernels, gpu_environment, pytest_outcomes"
    assert run_without(NOT_ON_A_BARE_GPU_MACHINE, code) == ""


def test_all_gpu_tests_are_collected_on_a_machine_that_has_only_torch_and_pytest():
    """As `make gpu` calls pytest, without its plugins."""
    marked = re.compile(r"pytest\.mark\.gpu[,\n]")
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if marked.search(path.read_text())]
    arguments = ["--collect-only", "-m", "gpu", "-o", "filterwarnings=default", "tests/gpu"]
    code = f"import pytest; sys.exit(pytest.main({arguments}))"
    shown = run_without(NOT_ON_A_BARE_GPU_MACHINE, code, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert len(paths) >= 4
    assert [path for path in paths if f"{path.relative_to(ROOT)}::" not in shown] == [], shown


@pytest.mark.parametrize("package", ["fsdata", "fscomm"])
def test_names_of_a_package_are_there_on_first_use(package):
    module = importlib.import_module(package)
    statements = ast.parse((PACKAGES[package] / "__init__.py").read_text()).body
    statements += [inner for statement in statements if isinstance(statement, ast.If) for inner in statement.body]
    imported = {alias.name for each in statements if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert imported - {"TYPE_CHECKING", "Any"} == set(module.__all__)  # what type checkers see
    assert set(module.__all__) <= set(dir(module))
    assert [name for name in module.__all__ if getattr(module, name).__name__.rpartition(".")[2] != name] == []
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'Tansport'$"):
        _ = module.Tansport


def test_every_package_is_packaged():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join([package, *path.parent.relative_to(root).parts])
        for package, root in PACKAGES.items()
        for path in root.rglob("*.py")
    }
    assert sorted(listed) == sorted(found)
