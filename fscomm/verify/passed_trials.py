"""Which kinds of modules passed their trial on the installed versions, kept on disk beside the compiled kernels.

Where the file is missing, damaged or of other versions, trials are made again. Failed trials are not kept, as their
cause may be repaired without a new version.
"""

import contextlib
import functools
import hashlib
import json
import platform
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from fscomm.plan.hash_tables import checksum
from fscomm.verify.trial_modules import Trial

FILE = "fscomm_passed_trials.json"
_VERSIONS = ("torch", "torchrec", "fbgemm_gpu", "numba", "numpy")


def passed(trials: Iterable[Trial], setting: Mapping[str, Any]) -> set[str]:
    """Kinds of modules. setting: in which a trial was made, beside the versions."""
    kept = _kept().get(_key(setting), ())
    return {trial.kind for trial in trials if _identity(trial) in kept}


def add(trials: Sequence[Trial], setting: Mapping[str, Any]) -> None:
    """Keep them, where the file can be written. Of processes that write at once the last one wins."""
    if not trials:
        return
    kept = _kept()
    kept[_key(setting)] = sorted({*kept.get(_key(setting), ()), *map(_identity, trials)})
    with contextlib.suppress(OSError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may read meanwhile: it gets the old file or the new one, and never a part.
        half = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            half.write_text(json.dumps({"versions": versions(), "passed": kept}))
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


def _kept() -> dict[str, list[str]]:
    """By setting, the trials that the file names for the installed versions."""
    try:
        kept = json.loads(_path().read_text())
        if kept["versions"] != versions():
            return {}
        return {str(setting): [str(kind) for kind in kinds] for setting, kinds in kept["passed"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def versions() -> dict[str, str]:
    """Of all that a trial depends on. For fscomm it is the hash of its sources."""
    found = {name: sys.modules[name].__version__ for name in _VERSIONS}
    return found | {"python": platform.python_version(), "machine": platform.machine(), "fscomm": _own_sources()}


def _identity(trial: Trial) -> str:
    """The kind, and a hash of where the code of those methods is from through which a served forward goes.

    A version number does not tell a checkout of TorchRec from a release, nor methods that the program has replaced by
    others. So both get a trial of their own.
    """
    digest = hashlib.sha256()
    for kind, names in {**trial.methods, SplitTableBatchedEmbeddingBagsCodegen: ("forward",)}.items():
        for name in names:
            code = getattr(getattr(kind, name, None), "__code__", None)
            file = Path(code.co_filename) if code is not None else None
            changed = file.stat().st_mtime_ns if file is not None and file.exists() else 0
            digest.update(f"{kind} {name} {file} {code and code.co_firstlineno} {changed}\n".encode())
    return f"{trial.kind} {digest.hexdigest()}"


@functools.cache
def _own_sources() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _key(setting: Mapping[str, Any]) -> str:
    return json.dumps(dict(setting), sort_keys=True)


def _path() -> Path:
    """Raises OSError where numba finds no folder to keep compiled kernels in."""
    folder = checksum.stats.cache_path
    if folder is None:
        raise FileNotFoundError("no folder for compiled kernels")
    return Path(folder) / FILE
