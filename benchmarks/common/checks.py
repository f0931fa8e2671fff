"""The checks of a command of `make gpu`, written again whenever one begins or ends."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path


class Checks:
    """Writes `<name>.json` into `folder`: {"checks": [{name, status, told}, ...], ...}."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.json"
        self._checks: dict[str, dict[str, str]] = {}
        self.more: dict[str, object] = {}  # of the document

    def put(self, name: str, status: str, told: str = "") -> None:
        """status: passed, failed, skipped or running."""
        self._checks[name] = {"name": name, "status": status, "told": told}
        beside = self._path.with_suffix(".tmp")  # whoever reads never sees half a document
        beside.write_text(json.dumps({"checks": list(self._checks.values()), **self.more}, indent=1))
        beside.replace(self._path)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[list[str]]:
        """What the block appends is told. An error in it is a failed check; the next one goes on."""
        told: list[str] = []
        self.put(name, "running")
        try:
            yield told
        except Exception as error:  # of any kind: the other questions are to be answered, too
            self.put(name, "failed", "; ".join([*told, f"{type(error).__name__}: {error}"]))
        else:
            self.put(name, "passed", "; ".join(told))

    def problems(self) -> int:
        return sum(check["status"] == "failed" for check in self._checks.values())
