"""The installed torchrec. Where it does not have what fscomm imports of it, nothing of it is served."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from fscomm.tables.sharding_library import Library, outermost


def installed() -> Library:
    """Raises ImportError if there is no torchrec, and says how to install it."""
    try:
        import torchrec
    except ModuleNotFoundError as error:
        if error.name != "torchrec":
            raise
        raise ModuleNotFoundError(
            "fscomm.enable serves modules of torchrec, which is not installed: see Installing in the README",
            name="torchrec",
        ) from error

    try:
        from fscomm.tables.torchrec import torchrec_library
    except (ImportError, AttributeError) as error:
        version = getattr(torchrec, "__version__", "of an unknown version")
        return UnknownLibrary(f"torchrec {version} has not what this fscomm needs: {error}")
    return torchrec_library


class UnknownLibrary:
    """As `Library` has it. Its modules are found by what their classes are called."""

    def __init__(self, why: str) -> None:
        self._why = why

    def sharded_modules(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        return outermost(model, lambda module: type(module).__name__.startswith("Sharded"))

    def problems(self, found: Mapping[str, Any], *_: Any) -> dict[str, str]:
        return dict.fromkeys(found, self._why)

    def parts(self, *_: Any) -> list[str]:
        return []

    def versions(self) -> dict[str, str]:
        return {"torchrec": self._why}  # ranks that can import it have another answer, and all of them raise

    def trial(self, module: Any) -> None:
        return None

    def adds_parts(self, name: str, module: Any, unserved: Collection[str]) -> dict[str, Any]:
        return {}

    def bind(self, *_: Any) -> Any:
        raise AssertionError(self._why)

    def features_problem(self, features: Any) -> str | None:
        return self._why

    def make_features(self, *_: Any) -> Any:
        raise AssertionError(self._why)

    def asked(self, *_: Any) -> tuple[int, int]:
        return 0, 0
