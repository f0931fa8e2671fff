"""The rows of every rank at a position of an epoch: pure planning over all that has changed within the epoch.

The changes are in `Progress`: other numbers of ranks (`fsdata.order.deal`), and other weights and sources
(`fsdata.order.mixture`). Letters: S sources, U units.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsdata.order.deal import epoch_streams
from fsdata.order.mix import Keys, Mix, Unit
from fsdata.order.mixture import Mixture, Weights, mixed_by, mixture, remixed, whole
from fsdata.order.progress import Progress
from fsdata.order.stream import Stream


class EpochOrder:
    """The order of the rows of all epochs.

    Args:
        row_counts: [S] int64, rows of the row groups of every source.
        weights: [S] of epochs that begin. times: keys of the row groups, for `mix="time"`.
        shuffle, shuffle_window, seed: see `FreeScaleDataLoader`.

    Attributes:
        whole: all rows, mixed by `weights`.
    """

    def __init__(
        self,
        row_counts: Sequence[np.ndarray],
        weights: Weights,
        *,
        mix: Mix,
        times: Keys | None,
        shuffle: bool,
        shuffle_window: int | float,
        seed: int,
    ) -> None:
        self._rows = [whole(counts) for counts in row_counts]
        self._mix: dict[str, Any] = {"mix": mix, "times": times}
        self._order: dict[str, Any] = {"shuffle": shuffle, "shuffle_window": shuffle_window, "seed": seed}
        self.whole = self._mixture(mixed_by(weights, mix))
        # Of the last position with another mix: mixing may take seconds, and an epoch that has changed needs it often.
        self._last: tuple[Any, tuple[list[Mixture], list[Stream]]] | None = None

    def streams(
        self, progress: Progress, world_size: int, units: slice = slice(None)
    ) -> tuple[list[Mixture], list[Stream]]:
        """(the mixtures that the epoch has had, the streams of all ranks since the last change of it).

        units: those of the epoch, if its mix did not change; a part of them is a window of time.
        """
        chain = progress.epoch, progress.history, progress.mixes, world_size
        if progress.mixes and self._last is not None and self._last[0] == chain:
            return self._last[1]
        mixtures = [self._mixture(progress.mixes[0][1]) if progress.mixes else self.whole]
        order = {**self._order, "epoch": progress.epoch}

        def remix(rest: Sequence[Stream], weights: Weights, size: int) -> list[Stream]:
            number = len(mixtures)
            found, dealt = remixed(rest, mixtures[-1], weights, number=number, world_size=size, **self._mix, **order)
            mixtures.append(found)
            return dealt

        rows, ranks = mixtures[0].units.row_counts[units], progress.first_world_size
        first = epoch_streams(rows, first_unit=units.start or 0, world_size=ranks, **order)
        streams = progress.streams(first, world_size, remix)
        if progress.mixes:
            self._last = chain, (mixtures, streams)
        return mixtures, streams

    def _mixture(self, weights: Weights) -> Mixture:
        """All rows of the sources, mixed by these weights."""
        return mixture(self._rows, weights, **self._mix)


class UnitsOfEpoch:
    """The units of an epoch by number, over all mixtures that it has had.

    Attributes:
        mixtures: at least one. row_counts: int64 [U], of all units.
    """

    def __init__(self, mixtures: Sequence[Mixture]) -> None:
        self.mixtures = list(mixtures)
        counts = [each.units.row_counts for each in mixtures]
        self.row_counts = counts[0] if len(counts) == 1 else np.concatenate(counts)

    def __getitem__(self, number: int) -> Unit:
        return self._with(number).unit(number)

    def order_in(self, number: int) -> np.ndarray:
        """See `Mixture.order_in`."""
        return self._with(number).order_in(number)

    def _with(self, number: int) -> Mixture:
        return next(each for each in reversed(self.mixtures) if each.first_unit <= number)
