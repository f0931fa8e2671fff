"""Which iterator may take a loader's next batch: one iterator at a time, in the process that its threads belong to."""

import os


class Turn:
    """Handed to the newest iterator of a loader; the one before it loses it. For the training thread alone."""

    def __init__(self) -> None:
        self._holder: object = None
        self._process: int | None = None

    @property
    def forked(self) -> bool:
        """This process is a child of the one that `settle` was called in: it has none of its threads."""
        return self._process not in (None, os.getpid())

    def settle(self) -> None:
        """Threads and connections belong to this process from now on."""
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raises RuntimeError in a forked child, where everything else would wait for ever."""
        if self.forked:
            raise RuntimeError(
                f"this loader was used in process {self._process} before process {os.getpid()} was forked from it, "
                "which has none of its threads and would wait for ever. Make the loader in the process that iterates it"
            )

    def take(self) -> object:
        """What the new iterator shows to `check`."""
        self.check_process()
        self._holder = object()
        return self._holder

    def check(self, shown: object) -> None:
        """Raises RuntimeError if another iterator has taken over."""
        if shown is not self._holder:
            raise RuntimeError(
                "this iterator has ended: another iter() of the same loader took over. A loader has one iterator at a "
                "time; make a loader for each"
            )
