"""Connecting the ranks of a gloo group, with retries: now and then the kernel resets one of many new connections."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fsranks.diagnosis import overslept
from fsranks.errors import PeerError, name_ranks
from fsranks.job_store import JobStore
from fsranks.machine.local_processes import Neighbours
from fsranks.network import Network, brief

_TRIES = 3


@dataclass(slots=True, kw_only=True)
class Connector:
    """This rank's part in connecting; all ranks tell each other through `store` whether each try has worked.

    All tries together may take `timeout_s`. Then a question to the other ranks may take `diagnosis_s`.
    """

    network: Network
    store: JobStore
    rank: int
    world_size: int
    timeout_s: float
    diagnosis_s: float
    _begin: float = 0.0
    _end: float = 0.0

    def connect(self) -> tuple[Any, Neighbours]:
        """Gloo's group, once every rank has one. If one rank's connections break, all ranks connect again.

        Raises:
            PeerError: names the ranks that did not come, have ended, stopped for a while, or could not connect; none
                where the time limit was over on some rank and nothing tells which rank was the reason.
        """
        self._begin = self.network.clock.now()
        self._end = self._begin + self.timeout_s
        self.store.post(f"here/{self.rank}", json.dumps(self.network.process()), self.timeout_s)
        for number in range(_TRIES):
            where = self.store, f"gloo/{number}", self.rank, self.world_size
            try:
                gloo = self.network.connect(*where, self.timeout_s, within_s=self._left_s())
                failure = ""
            except RuntimeError as error:
                gloo, failure = None, brief(error) or type(error).__name__
            outcomes = self._tell(number, failure)
            failures = {rank: outcome["failure"] for rank, outcome in outcomes.items() if outcome["failure"]}
            if not failures:
                return gloo, self.network.neighbours(outcomes, self.rank)
            del gloo  # its connections end before the next ones are made
            late = any(outcome["late"] for outcome in outcomes.values())
            if late:
                self._check_stopped(outcomes)
                break  # all ranks know: none tries again, and waits for the others in vain
        failure = next(iter(failures.values()))
        tries = "1 try" if number == 0 else f"{number + 1} tries"
        # After the time limit the ranks without a connection are those that waited: their names would blame them.
        who = f"{len(failures)} of {self.world_size} ranks" if late else name_ranks(list(failures))
        raise self._over(outcomes, f"{tries} failed, the last one on {who}: {failure}")

    def _tell(self, number: int, failure: str) -> dict[int, dict[str, Any]]:
        """What every rank says about try `number`; `failure` is empty if it worked here."""
        late = self.network.clock.now() >= self._end
        waited_s = self.network.clock.now() - self._begin
        said = json.dumps({"failure": failure, "late": late, "waited_s": waited_s, **self.network.process()})
        self.store.post(f"connected/{number}/{self.rank}", said, self._left_s())
        if failure:
            self._check_here(number, failure)
        outcomes = self._outcomes(number)
        if silent := self._without(outcomes):
            active = self._check_here(number, failure).active()
            lost = [rank for rank in silent if rank not in active] or silent
            raise self._over(outcomes, f"{name_ranks(lost)} did not say if they can")
        return outcomes

    def _check_stopped(self, outcomes: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise PeerError if ranks needed much more time than there was."""
        waited = {rank: outcome["waited_s"] for rank, outcome in outcomes.items()}
        if slept := overslept(waited, self.timeout_s):
            why = f"{name_ranks(slept)} stopped for a while: it tried for {max(waited.values()):.1f} s"
            raise self._over(outcomes, f"{why}, not {self.timeout_s:g} s")

    def _check_here(self, number: int, failure: str) -> Neighbours:
        """Raise PeerError if a rank has not even begun to connect, or has ended since without a word about this try."""
        keys = {f"here/{rank}": rank for rank in range(self.world_size)}  # perhaps no other rank asks just now
        here = {keys[key]: json.loads(note) for key, note in self.store.wait(keys, self.diagnosis_s).items()}
        if absent := self._without(here):
            what = f"{name_ranks(absent)} did not come within {self.timeout_s:g} s. gloo said: {failure}"
            raise self._over(here, what)
        neighbours = self.network.neighbours(here, self.rank)
        gone = {f"connected/{number}/{rank}": rank for rank in neighbours.gone()}
        said = self.store.wait(gone, 0)  # those have told the reason, and ended after it
        if lost := [rank for key, rank in gone.items() if key not in said]:
            raise self._over(here.keys() - lost, f"{name_ranks(lost)} has ended. Look at the log of that rank")
        return neighbours

    def _over(self, others: Iterable[int], why: str) -> PeerError:
        """The error to raise, once `others`, which raise one, too, have read what they need."""
        self.store.part(self.rank, others, self.diagnosis_s)
        return PeerError(f"the ranks could not connect over gloo: {why}")

    def _outcomes(self, number: int) -> dict[int, dict[str, Any]]:
        """By rank; those that are not there in time are left out."""

        def answer(notes: Mapping[int, str]) -> str:
            return json.dumps({rank: json.loads(note) for rank, note in notes.items()})

        said = self.store.hear(f"connected/{number}/", self.rank, self.world_size, answer, self._left_s())
        return {int(rank): outcome for rank, outcome in json.loads(said).items()}

    def _without(self, notes: Mapping[int, object]) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in notes]

    def _left_s(self) -> float:
        return max(self._end - self.network.clock.now(), self.diagnosis_s)
