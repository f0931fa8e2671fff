"""What `enable(parts=...)` asks for, and whether a model can be computed so."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fscomm.device import Device
from fscomm.engine.schedule import Forwards, StepSchedule
from fscomm.errors import NotServedError
from fscomm.loop.lookahead import Listener
from fscomm.parts.batch_parts import InOnePart
from fscomm.parts.number_of_parts import AUTO, MOST_PARTS, NumberOfParts
from fscomm.parts.schedule import PartSchedule
from fscomm.report.recorder import Recorder
from fscomm.tables.binding import Binding

log = logging.getLogger("fscomm")


class AskedParts:
    """parts: as the user gave them.

    Attributes:
        given: the numbers of parts. numbers: what is served of them, once that is settled.

    Raises:
        ValueError: they are something else than numbers of parts.
    """

    def __init__(self, parts: Any) -> None:
        given: Any = AUTO if isinstance(parts, str) and parts == "auto" else parts
        given = given if isinstance(given, Sequence) else (given,)
        in_range = 0 < len(given) <= MOST_PARTS and all(type(k) is int and 1 <= k <= MOST_PARTS for k in given)
        if not in_range or len({*given}) < len(given):
            raise ValueError(
                f"parts must be a number from 1 to {MOST_PARTS}, several of them, each once, or 'auto', got {parts!r}"
            )
        self.given = tuple(given)
        self.numbers = NumberOfParts(self.given)
        self._averaged: list[DistributedDataParallel] = []

    def settle(
        self,
        model: nn.Module,
        modules: Sequence[Binding],
        problems: Mapping[str, str],
        recorder: Recorder,
        *,
        strict: bool,
    ) -> None:
        """Numbers with a 1 among them come to one part where `model` cannot be computed in several.

        Raises:
            NotServedError: it cannot, and one part was not asked for; or `strict`.
        """
        self._averaged = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        why = self._why_one_part(modules, problems) if max(self.given) > 1 else None
        if why is not None:
            if strict or 1 not in self.given:
                raise NotServedError(
                    f"enable(parts={self.given[0] if len(self.given) == 1 else list(self.given)}): {why}"
                )
            log.warning("fscomm: steps are not computed in parts: %s", why)
            self.numbers = NumberOfParts([1])
        recorder.in_parts(self.numbers, why)

    def schedule(self, recorder: Recorder, device: Device, *, limit_s: float) -> Callable[[Forwards], StepSchedule]:
        """What makes the schedule of an engine; limit_s: that a step may take on the device."""
        return partial(
            PartSchedule,
            numbers=self.numbers,
            averaged=self._averaged,
            recorder=recorder,
            device=device,
            limit_s=limit_s,
        )

    def listener(self) -> Listener:
        """For a block in which nothing is served."""
        return InOnePart()

    def _why_one_part(self, modules: Sequence[Binding], problems: Mapping[str, str]) -> str | None:
        """Why steps cannot be computed in parts: all tables have to be read and updated once a step."""
        whole = {module.name: why for module in modules if (why := module.whole_batches_only) is not None}
        if refused := {**problems, **whole}:
            return (
                "all parts of a step are looked up in tables as they were before it, which fscomm cannot do for "
                f"{'; '.join(f'{name}: {why}' for name, why in refused.items())}"
            )
        if any(each.static_graph for each in self._averaged):
            return (
                "gradients of parts are added up before DistributedDataParallel exchanges them. torch cannot do that "
                "with static_graph=True: give DistributedModelParallel a DefaultDataParallelWrapper(static_graph=False)"
            )
        return None
