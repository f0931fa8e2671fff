"""Numbers drawn from measured steps, what must be equal, and what the screen says."""

import re
from dataclasses import replace

import numpy as np
import pytest

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.results import (
    GUESSED,
    WARMUP,
    Act,
    Outcome,
    Run,
    Step,
    check_same_samples,
    difference,
)
from freescale_tools.demo.screen import balancing_sentence, communication_sentence, show, show_maps
from fscomm.report.report import Forwards, Managed
from fsdata import Polynomial
from fsmeter.intervals import KINDS

COST = Polynomial(linear=1, quadratic=0)


def step(*, compute_ns=1_000, loss=6.0, lengths=(3, 4), checksum=7):
    return Step(compute_ns=compute_ns, loss=loss, lengths=np.array(lengths, np.int64), stored=7, checksum=checksum)


def run_of(name, *steps, seconds=2.0, weights=("a", "b"), like="", exposed=0.005, collisions=None):
    parts = dict.fromkeys(KINDS, exposed / len(KINDS)) | {"seconds": seconds, "straggler": 0.5}
    return Run(
        name=name, like=like, steps=steps or ((step(), step()),), seconds=parts, weights=weights, fallbacks={},
        collisions=collisions,
    )  # fmt: skip


def test_straggler_shares_are_those_of_steps_without_the_warm_up():
    warm = [(step(compute_ns=1), step(compute_ns=10**9))] * WARMUP
    short = (step(compute_ns=10, lengths=(1,)), step(compute_ns=5, lengths=(3,)))
    long = (step(compute_ns=1_000, lengths=(8,)), step(compute_ns=1_000, lengths=(2, 2)))
    run = run_of("x", *warm, short, long)
    assert run.straggler == pytest.approx((0.25 + 0) / 2), "not weighted by length"
    assert run.planned(COST) == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert run_of("x", short).straggler == pytest.approx(0.25), "where there is nothing but warm-up"


def test_loss_is_that_of_the_global_batch_and_entropy_counts_what_is_predicted():
    run = run_of("x", (step(lengths=(3, 1)), step(lengths=(2, 2, 9), loss=12.0)))
    assert run.losses.tolist() == [18 / 5]
    assert run.last == pytest.approx((18 / 5, 18 / (4 * GUESSED)))


def test_runs_on_different_samples_are_told_apart():
    first = run_of("a", (step(checksum=1, lengths=(3, 4)), step(checksum=2, lengths=(5,))))
    check_same_samples(first, run_of("b", (step(checksum=2, lengths=(5, 4)), step(checksum=1, lengths=(3,)))))
    for wrong in ((step(checksum=3, lengths=(3, 4)), step(checksum=1, lengths=(5,))),
                  (step(checksum=1, lengths=(3, 4)), step(checksum=2, lengths=(6,)))):  # fmt: skip
        with pytest.raises(CommandFailed, match="step 0: a and c trained on different samples"):
            check_same_samples(first, run_of("c", wrong))
    other = run_of("d", (step(checksum=1, loss=6.1), step(checksum=2, lengths=(5,))))
    with pytest.raises(CommandFailed, match="step 0: a has the loss"):
        check_same_samples(first, other)
    check_same_samples(first, replace(other, zch=True))  # other tables may begin with another loss
    with pytest.raises(CommandFailed, match="trained on different samples"):
        check_same_samples(first, replace(run_of("e", wrong), zch=True))


def test_one_last_bit_is_a_difference():
    run = run_of("x", (step(loss=1.0), step(loss=2.0)), (step(), step()))
    assert difference(run, run) is None
    apart = replace(run, steps=((step(loss=1.0), step(loss=np.nextafter(2.0, 3))), run.steps[1]))
    assert "step 0: global losses 0.75 and 0.75" in difference(run, apart)
    assert "differ on rank 1" in difference(run, apart)
    assert "2 and 1 steps" in difference(run, replace(run, steps=run.steps[:1]))
    assert "at the end" in difference(run, replace(run, weights=("a", "c")))


def memory(*, plain_ns=60, balanced_ns=100, seconds=1.6, weights=("a", "b")):
    plain = run_of("plain", (step(compute_ns=plain_ns), step(compute_ns=100)))
    balanced = run_of("balanced", (step(compute_ns=balanced_ns), step(compute_ns=100)), seconds=seconds)
    prioritized = replace(plain, name="prioritized", like="plain", seconds=plain.seconds | {"seconds": 2.2})
    both = replace(balanced, name="both", like="balanced", weights=weights)
    return Act(links="memory", runs=(plain, prioritized, balanced, both), cost=COST)


def link(*, whole_s=1.4, cut_s=1.0, weights=("a", "b")):
    runs = (
        run_of("plain", exposed=1.0),
        run_of("TrainPipelineSparseDist", seconds=1.96, like="plain"),
        run_of("prioritized", seconds=whole_s, like="plain", collisions=0.12),
        run_of("prioritized, 4 parts", seconds=cut_s, like="plain, 4 parts", weights=weights, collisions=0.12),
    )
    return Act(links="100 Mbit/s", collisions=0.12, runs=runs, references=(run_of("plain, 4 parts"),))


LENGTHS = np.array([1, 1, 1, 1, 1, 1, 1, 8] * 16)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            r"took 20% off a step \(1600 instead of 2000 ms\): .* wait 20.0% .* for the slowest, balanced 0.0%\.",
        ),
        ({"seconds": 1.0}, "balanced 0.0%, which explains 20%; the rest is other work on these cores"),
        ({"balanced_ns": 20, "seconds": 1.0}, "balanced 40.0%, which explains 0%; the rest"),
        (
            {"seconds": 2.2},
            r"COST 10% of a step .* which should save 20%; moving samples and other work .* cost the rest",
        ),
        ({"seconds": 1.98}, "changed a step by less than 5%"),
    ],
    ids=["explained", "more", "worse stragglers", "cost", "nothing"],
)
def test_a_sentence_says_what_balancing_brought_or_cost_and_why(given, expected):
    found = balancing_sentence(Outcome(balancing=memory(**given)), LENGTHS, 1)
    assert re.search(expected, found), found


def test_more_ranks_are_planned_as_far_as_the_samples_fill_a_batch():
    few, many = (balancing_sentence(Outcome(balancing=memory()), LENGTHS, size) for size in (3, 1))
    assert "On 64 ranks the same samples, shuffled, would lose 77%, balanced 77% (single samples" in many
    assert "64 ranks" not in few


def test_a_sentence_says_what_communication_brought_or_cost_on_all_links():
    slower = replace(link(whole_s=2.4, cut_s=1.99), collisions=0.8)
    slower = replace(slower, runs=tuple(replace(run, collisions=0.8) for run in slower.runs))
    found = communication_sentence(Outcome(balancing=memory(), communication=(link(), slower)), 4)
    assert "still wait for the link, 1 ms are DDP's all-reduce" in found
    assert found.splitlines()[1:4] == [
        "- 100 Mbit/s, 12% of ids collide: it took 30% off a step (1400 instead of 2000 ms); in 4 parts it took 50% "
        "off a step (1000 instead of 2000 ms); TorchRec's pipeline changed a step by less than 5% (1960 instead of "
        "2000 ms)",
        "- 100 Mbit/s, 80% of ids collide: it COST 20% of a step (2400 instead of 2000 ms); in 4 parts it changed a "
        "step by less than 5% (1990 instead of 2000 ms); TorchRec's pipeline changed a step by less than 5% (1960 "
        "instead of 2000 ms)",
        "- memory, 0% of ids collide: it COST 10% of a step (2200 instead of 2000 ms)",
    ]


def test_a_gain_beyond_shorter_waits_is_other_work():
    act = memory()
    plain, prioritized, *others = act.runs
    faster = replace(act, runs=(plain, replace(prioritized, seconds=plain.seconds | {"seconds": 1.4}), *others))
    found = communication_sentence(Outcome(balancing=faster, communication=(link(),)), 4).splitlines()
    assert found[1].startswith("- 100 Mbit/s, 12% of ids collide: it took 30% off a step (1400 instead of 2000 ms); in")
    assert found[2] == (
        "- memory, 0% of ids collide: it took 30% off a step (1400 instead of 2000 ms), of which shorter waits explain "
        "0%; the rest is other work on these cores"
    )


def cells(shown):
    """The lines of a table, with single spaces."""
    return [" ".join(line.split()) for line in re.sub("[│┃]", " ", shown).splitlines()]


def test_the_table_has_all_runs_and_fails_where_a_bit_differs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "130")
    show(Outcome(balancing=memory(), communication=(link(),)), Terminal())
    rows = cells(capsys.readouterr().out)
    assert "memory 0 both 1,600 500 5 2 balanced" in rows
    assert "100 Mbit/s 12 plain 2,000 500 1,000 2 -" in rows
    assert "100 Mbit/s 12 prioritized, 4 parts 1,000 500 5 4 plain, 4 parts" in rows
    for outcome in (
        Outcome(balancing=memory(weights=("a", "c"))),
        Outcome(balancing=memory(), communication=(link(weights=("a", "c")),)),
    ):
        with pytest.raises(CommandFailed, match=r"is not bitwise identical to (balanced|plain, 4 parts): tables"):
            show(outcome, Terminal())
        assert re.search("NOT +(balanced|plain, 4 parts)", capsys.readouterr().out)


def test_maps_are_shown_and_fail_where_nothing_was_evicted(capsys):
    alone = run_of("plain")
    one = Managed(ids=100, hits=50, own=80, late=25, inserted=6, evicted=3)
    tables = {"embeddings.table_items": one, "embeddings.table_users": Managed(ids=100)}
    forwards = Forwards(served=7, plain={"new hour": 2, "first": 1})
    served = replace(alone, like="plain", zch=True, managed=tables, forwards=forwards)
    show_maps(Outcome(balancing=Act(links="memory", runs=(alone, served))), Terminal())
    shown = capsys.readouterr().out
    assert [row for row in cells(shown) if row.startswith("all ")] == ["all 200 6 3 25 40 12.5"]
    assert "7 of 10 forwards served" in shown
    assert "2 as in plain TorchRec: new hour" in shown
    still = replace(served, managed={"embeddings.table_items": replace(one, evicted=0)})
    with pytest.raises(CommandFailed, match="no row was taken over"):
        show_maps(Outcome(balancing=Act(links="memory", runs=(alone, still))), Terminal())
