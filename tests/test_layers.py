"""Arrows point one way: what each part of the project may import, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "fscomm": ROOT / "fscomm",
    "fsdata": ROOT / "fsdata",
    "fsranks": ROOT / "fsranks",
    "freescale_tools": ROOT / "tools",
}
OURS = ("fsdata", "fscomm", "fsranks", "freescale_tools")


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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
        ("fsdata", "", ("fscomm", "freescale_tools"), ()),
        ("fscomm", "", ("fsdata", "freescale_tools"), ()),
        ("fsranks", "", ("fsdata", "fscomm", "freescale_tools", "torchrec"), ()),
        ("fsdata", "kernels", OURS, ("fsdata.kernels",)),
        ("fsdata", "packing", (*OURS, "torch", "pyarrow", "polars"), ("fsdata.packing", "fsdata.kernels")),
        ("fsdata", "redistribute", ("fsdata.packing", "fsdata.cost", "fsdata.loader", "fsdata.sources"), ()),
        ("fsdata", "reading", ("fsdata.packing", "fsdata.redistribute", "fsdata.loader", "fsdata.sources"), ()),
        ("fsdata", "sources", ("fsdata.reading", "fsdata.packing", "fsdata.redistribute", "fsdata.loader"), ()),
    ],
)
def test_arrows_point_one_way(package, under, forbidden, allowed):
    assert files(package, under), under
    assert violations(files(package, under), forbidden=forbidden, allowed=allowed) == []


def test_cost_models_know_only_arrays():
    assert violations([ROOT / "fsdata/cost.py"], forbidden=(*OURS, "torch"), allowed=("fsdata.errors",)) == []


@pytest.mark.parametrize("package", ["fsdata", "fscomm"])
def test_torchrec_is_imported_in_one_file(package):
    theirs = {"torchrec", "fbgemm_gpu"}
    inside = [path.name for path in files(package) if any(name.split(".")[0] in theirs for name in imports(path))]
    assert inside == ["torchrec_binding.py"]


def test_nothing_is_unpickled():
    paths = [path for package in ("fscomm", "fsdata", "fsranks") for path in files(package)]
    assert violations(paths, forbidden=("pickle", "cloudpickle", "dill", "marshal", "shelve")) == []


def test_planning_and_kernels_start_no_threads_and_send_nothing():
    pure = [
        ROOT / "fscomm" / f"{name}.py"
        for name in ("plan", "answers", "layout", "order", "overlap", "kernels", "schedule")
    ]
    pure += [
        ROOT / "fscomm/transports" / f"{name}.py"
        for name in ("choose", "padding", "pipeline", "requirements", "ring_plan")
    ]
    for path in pure:
        forbidden = {"threading", "queue", "torch.distributed", "fscomm.engine", "fscomm.transports.transport"}
        assert not forbidden & imports(path), path


@pytest.mark.parametrize("package", ["fsdata", "fscomm"])
def test_importing_needs_neither_torchrec_nor_triton_nor_cuda(package):
    code = f"import sys, {package}; print({{'torchrec', 'triton', 'fbgemm_gpu', 'pandas'}} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_every_package_is_packaged():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join([package, *path.parent.relative_to(root).parts])
        for package, root in PACKAGES.items()
        for path in root.rglob("*.py")
    }
    assert sorted(listed) == sorted(found)
