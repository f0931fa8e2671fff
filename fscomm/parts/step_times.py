"""Measures steps while the number of their parts is still to be chosen. All ranks get the times with ids."""

import logging
from collections.abc import Sequence

from fscomm.device import Device
from fscomm.engine.step import Step
from fscomm.parts.number_of_parts import NOTHING, NumberOfParts, Took
from fscomm.report.recorder import Recorder

log = logging.getLogger("fscomm")


class StepTimes:
    """Of this rank's training thread; by the recorder's clock. limit_s: that a step may take on a device."""

    def __init__(self, numbers: NumberOfParts, recorder: Recorder, device: Device, *, limit_s: float) -> None:
        self._numbers = numbers
        self._recorder = recorder
        self._device = device
        self._limit_s = limit_s
        self._began = self._waited = 0.0
        self._steps = 0  # of the loop that the user is in, without a pause
        self._steady = False  # the step that runs follows one in as many parts
        self._took = NOTHING  # not sent yet

    def begin_loop(self) -> None:
        """The user begins a loop, or continues one after another one."""
        self._steps = 0

    def begin(self, step: Step, left: Step | None, slowest: Sequence[int]) -> None:
        """The user gets `step`, and had `left` before; slowest: what the slowest rank took for an earlier one.

        Blocks until a device has done all that it was given, for as long as steps are measured.
        """
        steps, self._steps = self._steps, self._steps + 1
        if self._numbers.chosen is not None:
            return
        self._numbers.add(Took(*slowest))
        if self._numbers.chosen is not None:
            log.info("fscomm: %s", self._recorder.report().parts_line())
            return
        self._device.wait(self._device.mark(), self._limit_s)
        now, waited = self._recorder.clock(), self._recorder.waited_s
        # Steps are announced without the one before where a loop begins, and all of them where the loader draws the
        # random numbers of the training step.
        if left is None or (step.follows != left.number and steps < 2):
            self._steady = False
        else:
            before = len(left.progress.parts)
            if self._steady and any(module.used for module in left.modules):
                step_us, exposed_us = (round(1e6 * each) for each in (now - self._began, waited - self._waited))
                self._took = Took(before, step_us, exposed_us)
            self._steady = before == len(step.progress.parts)
        self._began, self._waited = now, waited

    def unsent(self) -> Took:
        """What the other ranks do not know yet."""
        took, self._took = self._took, NOTHING
        return took
