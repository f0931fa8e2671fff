"""What a step will move, told to the recorder as soon as its ids were exchanged."""

from collections.abc import Sequence

from fscomm.exchange.step import Step
from fscomm.plan.sharding_group import GroupLayout
from fscomm.report.recorder import Recorder


def count_rows(recorder: Recorder, step: Step, layouts: Sequence[GroupLayout]) -> None:
    """Note what the sharding groups of `step` will look up, and the ids that were exchanged for it."""
    for layout, ahead in zip(layouts, step.groups, strict=False):
        if ahead is not None:
            recorder.count(
                layout.module,
                step.number,
                occurrences=len(ahead.served.keys),
                colliding=ahead.colliding,
                unique=len(ahead.exclusive.ids) + len(ahead.collision.ids),
                unique_colliding=len(ahead.collision.ids),
            )
            sent, received = (
                sum(ids.occurrences) - ids.occurrences[layout.rank] for ids in (ahead.request.wire, ahead.served.wire)
            )
            recorder.bytes(layout.module, step.number, "ids", 8 * sent, 8 * received)
