"""What runs on every rank of the demo: `python -m freescale_tools.demo.ranks FOLDER`, started by torch's launcher.

The first act trains on links of memory, where samples of different length make ranks wait: plain, with fscomm,
balanced, with both. The second one trains on a slow link, where ranks wait for exchanges: plain, TorchRec's pipeline,
prioritized in one piece and in parts. Runs that are compared follow each other, so that a machine that slows down
affects all.
"""

import logging
import pickle
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from freescale_tools.console.ranks import join_ranks
from freescale_tools.demo.data import HISTORY, DemoData
from freescale_tools.demo.link import Link
from freescale_tools.demo.results import WARMUP, Act, Outcome, Run
from freescale_tools.demo.train import Variant, train
from fsdata import Balance, Polynomial, fit

_JOB, _OUTCOME = "job.pickle", "outcome.pickle"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to train.

    Attributes:
        data: of the first act. steps, link_steps: of each run of the two acts.
        link: of the second act. None: there is no second act.
        link_data: (collision rate that the set was made for, set) of the second act.
        parts: in how many parts steps are computed there, too; 1: not.
        zch: train twice more, with tables behind managed collision, in the first act.
    """

    data: DemoData
    steps: int
    link: Link | None = None
    link_data: tuple[tuple[float | None, DemoData], ...] = ()
    link_steps: int = 0
    parts: int = 1
    zch: bool = False
    seed: int = 0

    def save(self, folder: Path) -> None:
        """For the ranks, which read nothing but what this process has written into a folder of its own."""
        (folder / _JOB).write_bytes(pickle.dumps(self))


def read_outcome(folder: Path) -> Outcome:
    """What rank 0 has written into a folder of this process."""
    outcome: Outcome = pickle.loads((folder / _OUTCOME).read_bytes())
    return outcome


def main(folder: Path) -> None:
    """Train all runs; rank 0 writes the outcome."""
    for name in ("torchrec", "torch.fx"):  # notices that do not help users of the demo
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")
    warnings.filterwarnings("ignore", "To copy construct from a tensor")  # of MPZCH
    torch.set_num_threads(1)
    join_ranks("gloo", timeout_s=1_800)
    try:
        job: Job = pickle.loads((folder / _JOB).read_bytes())
        outcome = play(job)
        if dist.get_rank() == 0:
            (folder / _OUTCOME).write_bytes(pickle.dumps(outcome))
    finally:
        dist.destroy_process_group()


def play(job: Job) -> Outcome:
    """Both acts. Collective; the same on every rank."""
    first = balancing(job)
    second = [communication(data, rate, job, job.link) for rate, data in job.link_data if job.link]
    return Outcome(balancing=first, communication=tuple(second))


def balancing(job: Job) -> Act:
    """The act on links of memory."""

    def run(variant: Variant) -> Run:
        return train(job.data, variant, job.steps, job.seed)

    runs = [run(Variant(name="plain")), run(Variant(name="prioritized", loop="prioritized", like="plain"))]
    cost = fitted(*runs)
    for name, both, share in (("balanced", "both", False), ("shared", "shared, both", True)):
        if job.data.key or not share:
            balance = Balance(cost=cost)
            runs.append(run(Variant(name=name, balance=balance, share=share)))
            runs.append(run(Variant(name=both, loop="prioritized", balance=balance, share=share, like=name)))
    if job.zch:
        runs.append(run(Variant(name="plain, zch", zch=True)))
        runs.append(run(Variant(name="prioritized, zch", loop="prioritized", zch=True, like="plain, zch")))
    return Act(links="memory", runs=tuple(runs), cost=cost)


def communication(data: DemoData, rate: float | None, job: Job, link: Link) -> Act:
    """The act on `link`, on one set."""

    def run(variant: Variant) -> Run:
        return train(data, variant, job.link_steps, job.seed)

    in_parts = f"{job.parts} parts"
    alone = Variant(name=f"plain, {in_parts}", parts=job.parts)
    # What steps in parts have to be equal to needs no slow link.
    references = (run(alone),) if job.parts > 1 else ()
    variants = [
        Variant(name="plain"),
        Variant(name="TrainPipelineSparseDist", loop="pipeline", like="plain"),
        Variant(name="prioritized", loop="prioritized", like="plain"),
    ]
    if references:
        variants.append(Variant(name=f"prioritized, {in_parts}", loop="prioritized", parts=job.parts, like=alone.name))
    with link.limited():
        runs = tuple(run(variant) for variant in variants)
    return Act(links=str(link), collisions=rate, runs=runs, references=references)


def fitted(*runs: Run) -> Polynomial:
    """The cost of a sample by its length, from the compute time of steps, which all ranks know alike."""
    steps = [step for run in runs for ranks in run.steps[WARMUP:] for step in ranks]
    try:
        return fit([{HISTORY: step.lengths} for step in steps], [step.compute_ns / 1e9 for step in steps])
    except ValueError:  # too few steps, or steps that do not get longer with their samples
        return Polynomial()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
