"""Where the user may look at tables or optimizer state: all pending updates are completed first.

Hooks on instances only, each undone by what `install` returns.
"""

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

Undo = Callable[[], None]


def install(module: Any, optimizers: list[Any], flush: Callable[[], None], loaded: Callable[[], None]) -> list[Undo]:
    """Call `flush` before the state of `module` or of its fused `optimizers` is read, `loaded` when it is replaced."""

    def replace(*_: Any) -> None:
        flush()
        loaded()

    before = module.register_state_dict_pre_hook(lambda *_: flush())
    loading = module.register_load_state_dict_pre_hook(replace)
    undo: list[Undo] = [before.remove, loading.remove]
    for optimizer in optimizers:
        undo.append(_watch_state(optimizer, flush))
    return undo


def _watch_state(optimizer: Any, flush: Callable[[], None]) -> Undo:
    """A fused optimizer's state aliases its kernel's memory; combined optimizers read it through this attribute."""
    state = optimizer.state
    watched = optimizer.state = FlushedState(state, flush)

    def undo() -> None:
        state.update(dict.items(watched))
        optimizer.state = state

    return undo


class FlushedState(dict[Any, Any]):
    """A state dictionary that is flushed before anything of it is read."""

    def __init__(self, state: dict[Any, Any], flush: Callable[[], None]) -> None:
        super().__init__(state)
        self._flush = flush

    def __getitem__(self, key: Any) -> Any:
        self._flush()
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._flush()
        return super().get(key, default)

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]
        self._flush()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._flush()
        return super().values()

    def __repr__(self) -> str:
        self._flush()
        return super().__repr__()

    def __reduce__(self) -> Any:
        """Copied and saved as the dictionary that it stands for."""
        self._flush()
        return dict, (dict(super().items()),)

    def __iter__(self) -> Iterator[Any]:
        self._flush()
        return super().__iter__()
