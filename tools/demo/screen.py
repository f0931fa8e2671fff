"""The demo's last screen: one table of all runs, and a sentence about each remedy, from the numbers of the table."""

from collections.abc import Sequence

import numpy as np

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.data import HISTORY
from freescale_tools.demo.results import STEPS_PER_HOUR, WARMUP, Act, Outcome, Run, check
from fscomm.report.report import Managed
from fsdata import Polynomial, pack
from fsdata.balance.packing.plan import straggler_share

_NOISE = 0.05  # of the time of a step: runs that differ by less are called alike
_MORE_RANKS = 64
_PIPELINE = "TrainPipelineSparseDist"
COLUMNS = (
    *("links", "ids that\ncollide %", "run", "step\nms", "waits for\nstragglers ms", "waits for\nlinks ms"),
    *("samples/s", "bitwise\nidentical to"),
)


def show(outcome: Outcome, terminal: Terminal) -> None:
    """Check the runs against each other and print the table.

    Raises CommandFailed if runs differ that must be equal.
    """
    rows: list[list[object]] = []
    differences = []
    for act in outcome.acts:
        found = check(act)
        for run in act.runs:
            apart = found.get(run.name)
            identical = f"NOT {run.like}" if apart else run.like or None
            rows.append([act.links, round(100 * act.rate), run.name, *numbers(run), identical])
            differences += [f"{run.name} is not bitwise identical to {run.like}: {apart}"] if apart else []
    ranks = len(outcome.balancing.plain.steps[0])
    terminal.table(
        f"{ranks} ranks; the runs of a link train on the same samples",
        COLUMNS,
        rows,
        notes=[
            f"means over ranks, and over steps without the first {WARMUP}; waits are within the step",
            "waits for stragglers: an exchange waits for a rank that has not begun it; for links: all have begun it",
        ],
    )
    for act in outcome.acts:
        for run in act.runs:
            for module, why in run.fallbacks.items():
                terminal.say(f"{run.name}: {module} ran as in plain TorchRec: {why}")
    if differences:
        raise CommandFailed("; ".join(differences))


def links(act: Act) -> str:
    """The links of an act, and how many ids collide."""
    return f"{act.links}, {act.rate:.0%} of ids collide"


def numbers(run: Run) -> list[int]:
    """Step ms, both waits in ms, samples/s."""
    milliseconds = (1e3 * each for each in (run.step_s, run.waits_for_stragglers, run.exposed))
    return [round(each) for each in (*milliseconds, run.samples_per_s)]


def balancing_sentence(outcome: Outcome, lengths: np.ndarray, batch_size: int) -> str:
    """What balancing brought or cost, why, and what it would bring on more ranks. `lengths`: of samples of the set."""
    act = outcome.balancing
    plain, balanced = act.plain, act.run("balanced")
    assert balanced is not None
    assert act.cost is not None
    said = (
        f"Balancing {effect(act, 'balanced')}: the ranks' compute differs so that they wait {plain.straggler:.1%} of a "
        f"step for the slowest, balanced {balanced.straggler:.1%}"
    )
    explained = 1 - (1 - plain.straggler) / (1 - balanced.straggler)
    if act.gain("balanced") > explained + _NOISE:
        said += f", which explains {max(explained, 0):.0%}; the rest is other work on these cores"
    elif act.gain("balanced") < explained - _NOISE:
        said += (
            f", which should save {max(explained, 0):.0%}; moving samples and other work on these cores cost the rest"
        )
    ranks = len(plain.steps[0])
    if ranks < _MORE_RANKS <= len(lengths) // batch_size:
        without, with_it, least = planned_shares(act.cost, lengths, _MORE_RANKS, batch_size)
        said += f". On {_MORE_RANKS} ranks the same samples, shuffled, would lose {without:.0%}, balanced {with_it:.0%}"
        if least > _NOISE:
            said += " (single samples outweigh a rank; `freescale profile` prices shorter histories)"
    return said + "."


def communication_sentence(outcome: Outcome, parts: int) -> str:
    """What prioritized communication brought or cost on every kind of links, and where it brings more."""
    in_parts = f"prioritized, {parts} parts"
    said = []
    for act in (*outcome.communication, outcome.balancing):
        effects = [effect(act, "prioritized") + _beyond_waits(act, "prioritized")]
        effects += [f"in {parts} parts it {effect(act, in_parts)}"] if act.run(in_parts) else []
        effects += [f"TorchRec's pipeline {effect(act, _PIPELINE)}"] if act.run(_PIPELINE) else []
        said.append(f"- {links(act)}: it {'; '.join(effects)}")
    served = [run for act in outcome.communication for run in act.runs if run.name == "prioritized"]
    dense = sum(run.seconds["dense"] for run in served) / len(served)
    return "\n".join([
        "Prioritized communication, beside the plain loop on the same links:",
        *said,
        f"Of what its steps still wait for the link, {1e3 * dense:.0f} ms are DDP's all-reduce of dense gradients.",
        "Its gain grows with the time of exchanges relative to compute, and with fewer colliding ids. Steps in parts "
        "also overlap rows that collide. On links as fast as memory it gains nothing, and its threads use CPU time.",
    ])  # fmt: skip


def effect(act: Act, name: str) -> str:
    """What a run came to beside the plain one: took 17% off a step (813 instead of 974 ms)."""
    run = act.run(name)
    assert run is not None
    gain = act.gain(name)
    times = f"{1e3 * run.step_s:.0f} instead of {1e3 * act.plain.step_s:.0f} ms"
    if abs(gain) < _NOISE:
        return f"changed a step by less than {_NOISE:.0%} ({times})"
    return f"{'took' if gain > 0 else 'COST'} {abs(gain):.0%} {'off' if gain > 0 else 'of'} a step ({times})"


def _beyond_waits(act: Act, name: str) -> str:
    """Says so if a run is faster than its shorter waits explain."""
    run = act.run(name)
    assert run is not None
    waits, plain = (each.exposed + each.waits_for_stragglers for each in (run, act.plain))
    explained = (plain - waits) / act.plain.step_s
    if act.gain(name) <= max(explained, 0) + _NOISE:
        return ""
    return f", of which shorter waits explain {max(explained, 0):.0%}; the rest is other work on these cores"


def planned_shares(cost: Polynomial, lengths: np.ndarray, ranks: int, batch_size: int) -> list[float]:
    """Share of a step that ranks wait: unbalanced, balanced, and the least of any plan; means of whole batches."""
    size = ranks * batch_size
    steps = cost({HISTORY: lengths[: len(lengths) // size * size]}).reshape(-1, size)
    plans = [pack(step, ranks) for step in steps]
    shares: Sequence[Sequence[float]] = (
        [straggler_share(step.reshape(ranks, batch_size).sum(1)) for step in steps],
        [plan.straggler for plan in plans],
        [plan.lower_bound for plan in plans],
    )
    return [float(np.mean(share)) for share in shares]


def show_maps(outcome: Outcome, terminal: Terminal) -> None:
    """Print what tables behind managed collision did, in the run with prioritized communication that has them.

    Raises CommandFailed if no row was taken over, as then nothing was shown of evictions.
    """
    (run,) = (run for run in outcome.balancing.runs if run.zch and run.like)
    tables = {name.rpartition(".table_")[2]: found for name, found in run.managed.items()}
    tables["all"] = sum(tables.values(), Managed())
    rows = [
        [name, found.ids, found.inserted, found.evicted]
        + [round(100 * share, 1) for share in (found.hit_rate, found.own_share, found.late_share)]
        for name, found in tables.items()
    ]
    terminal.table(
        f"tables behind managed collision (MPZCH), an hour every {STEPS_PER_HOUR} steps, batches mapped ahead",
        ["table", "ids", "inserted", "evicted", "hit %", "own row %", "late %"],
        rows,
        notes=[
            "inserted: free rows that got an id; evicted: rows whose id had expired, taken over by another id",
            "hit: ids that had a row of their own before the batch; own row: that have one after it; late: whose row "
            "another id had before it, so that it is not fetched ahead",
        ],
    )
    plain = run.forwards.plain
    terminal.say(f"{run.name}: {run.forwards.served} of {run.forwards.served + sum(plain.values())} forwards served")
    for why, count in plain.items():
        terminal.say(f"  {count} as in plain TorchRec: {why}")
    if not tables["all"].evicted:
        raise CommandFailed("no row was taken over by another id, so evictions were not tried; give more --steps")
