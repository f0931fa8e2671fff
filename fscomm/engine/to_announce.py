"""Which modules get their rows fetched ahead for a batch that is announced, and why the others do not."""

from collections.abc import Sequence

from fscomm.engine.plain_runs import NOT_LOOKED_FOR
from fscomm.engine.step import ModuleInStep
from fscomm.engine.steps_in_loop import IDLE, TOO_MANY, WAITING, Steps
from fscomm.exchange.control_word import NO_STEP
from fscomm.exchange.id_exchange import Parts
from fscomm.loop.kjt_paths import Snapshot
from fscomm.tables.binding import ServedModules


class ToAnnounce:
    """Of the modules of one block."""

    def __init__(self, served: ServedModules, steps: Steps) -> None:
        self._served = served
        self._steps = steps
        self._ran: set[int] = set()  # modules whose own forward has returned
        self._unready = [NO_STEP] * len(served.modules)  # the last step announced before they ran, or while idle

    def ran(self, m: int) -> None:
        """The own forward of module m has returned. TorchRec makes a module ready in the first one."""
        self._ran.add(self._served.calls[m].start)

    def choose(
        self, number: int, given: Sequence[Parts | None], missing: Sequence[str | None], *, elsewhere: bool
    ) -> tuple[list[Parts | None], list[ModuleInStep]]:
        """[M] The features that are announced with step `number`, and what is known of each module in it.

        given, missing: the features that were found in the batch, and why others were not. elsewhere: in another thread
        than that which trains.
        """
        announced, modules = list(given), []
        for m, features in enumerate(given):
            why = missing[m] if features is None else self._why_not(m, elsewhere)
            not_found = features is None and why not in NOT_LOOKED_FOR
            unready = elsewhere and self._served.calls[m].start not in self._ran
            if why is not None or unready or self._steps.idle[m] >= IDLE:
                features = announced[m] = None
            if features is None and why is None:
                self._unready[m] = number
            modules.append(
                ModuleInStep(
                    features=None if features is None else [Snapshot(kjt) for kjt, _ in features],
                    missing=why,
                    not_found=not_found,
                    warms_up=elsewhere and number - self._unready[m] <= WAITING + 1,
                    given=None if features is None else features[0][0],
                )
            )
        return announced, modules

    def _why_not(self, m: int, elsewhere: bool) -> str | None:
        guard = self._served.modules[m].guard
        if (why := guard.why_not_ahead(prefetched=elsewhere or self._steps.prefetched)) is not None:
            return why
        return TOO_MANY if elsewhere and self._steps.is_full else None
