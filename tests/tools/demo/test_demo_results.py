"""Numbers drawn from measured steps, what must be equal, and what the last line says."""

import re
from dataclasses import replace

import numpy as np
import pytest

from freescale_tools.console.errors import CommandFailed
from freescale_tools.console.terminal import Terminal
from freescale_tools.demo.results import (
    GUESSED,
    WARMUP,
    Outcome,
    Run,
    Step,
    check_same_samples,
    difference,
    parts_verdict,
    show,
    show_maps,
    verdict,
)
from fscomm.report.report import Forwards, Managed
from fsdata import Polynomial
from fsmeter.intervals import KINDS

COST = Polynomial(linear=1, quadratic=0)


def step(*, compute_ns=1_000, loss=6.0, lengths=(3, 4), checksum=7):
    return Step(compute_ns=compute_ns, loss=loss, lengths=np.array(lengths, np.int64), held=7, checksum=checksum)


def run_of(name, *steps, seconds=2.0, weights=("a", "b")):
    parts = dict.fromkeys(KINDS, 0.001) | {"seconds": seconds, "straggler": 0.5}
    return Run(name=name, steps=steps, seconds=parts, weights=weights, fallbacks={})


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


def test_one_last_bit_is_a_difference():
    run = run_of("x", (step(loss=1.0), step(loss=2.0)), (step(), step()))
    assert difference(run, run) is None
    apart = replace(run, steps=((step(loss=1.0), step(loss=np.nextafter(2.0, 3))), run.steps[1]))
    assert "step 0: global losses 0.75 and 0.75" in difference(run, apart)
    assert "differ on rank 1" in difference(run, apart)
    assert "2 and 1 steps" in difference(run, replace(run, steps=run.steps[:1]))
    assert "at the end" in difference(run, replace(run, weights=("a", "c")))


def outcome(plain_ns, balanced_ns, seconds, weights=("a", "b")):
    plain = run_of("plain", (step(compute_ns=plain_ns), step(compute_ns=100)))
    balanced = run_of("balanced", (step(compute_ns=balanced_ns), step(compute_ns=100)), seconds=seconds)
    return Outcome(pairs=((plain, plain), (balanced, replace(balanced, name="both", weights=weights))), cost=COST)


@pytest.mark.parametrize(
    ("balanced_ns", "seconds", "told"),
    [
        (
            100,
            1.6,
            "took 20% less time here: unbalanced, ranks waited 20% of a step for the longest samples, balanced 0%",
        ),
        (100, 1.0, "balanced 0%, which explains 20%; the rest is other work on these cores"),
        (20, 1.0, "balanced 40%, which explains 0%; the rest"),
        (100, 2.2, "took 10% more time here: .* alone takes 20% off a step, .* cost more than that"),
    ],
)
def test_the_last_line_says_what_came_out_and_why(balanced_ns, seconds, told):
    found = verdict(outcome(60, balanced_ns, seconds))
    assert re.search(told, found), found


def in_parts(whole_s, cut_s, compute_ns):
    """Exposed seconds of a step of 2 s, in one piece and in parts; compute time in parts, of 100 in one piece."""
    alone = run_of("plain", (step(compute_ns=100), step(compute_ns=100)))
    whole, cut = (replace(alone, seconds=alone.seconds | {KINDS[0]: each}) for each in (whole_s, cut_s))
    slower = replace(alone, steps=((step(compute_ns=compute_ns), step(compute_ns=compute_ns)),))
    pairs = ((alone, whole), (alone, alone), (slower, replace(cut, collisions=0.82)))
    return Outcome(pairs=pairs, cost=COST, parts=4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            (0.396, 0.096, 112),
            "100 ms exposed in 4 parts, 400 of 2000 ms in one piece, with 82% of ids in collision: "
            "parts hid 15% of a step; by the plain runs, parts cost 12% more compute time",
        ),
        (
            (0.016, 0.006, 97),
            "10 ms exposed in 4 parts, 20 of 2000 ms in one piece, .*: parts brought nothing here, as less than 5% of "
            "a step is noise. Ranks share this machine, .* parts cost 0% more compute time",
        ),
        ((0.016, 0.516, 100), "520 ms exposed in 4 parts, 20 of 2000 ms .* brought nothing here"),
    ],
    ids=["hidden", "little to hide", "more exposed"],
)
def test_what_parts_bring_is_told_from_the_numbers(given, told):
    found = parts_verdict(in_parts(*given))
    assert re.search(told, found), found


def test_what_is_shown_has_planned_shares_and_fails_where_a_bit_differs(capsys):
    lengths = np.array([1, 1, 1, 1, 1, 1, 1, 8] * 8)
    show(outcome(60, 100, 1.6), lengths, 1, Terminal())
    shown = capsys.readouterr().out
    assert "plain 20.0%, not 0.0%; balanced 0.0%, not 0.0%. The plan knows lengths alone" in shown
    assert "│     8 │         76.6 │       76.6 │                76.6 │" in shown
    assert "balanced and both equal to the bit: yes" in shown
    with pytest.raises(CommandFailed, match="changed the results"):
        show(outcome(60, 100, 1.6, weights=("a", "c")), lengths, 1, Terminal())
    assert "balanced and both equal to the bit: NO, tables" in capsys.readouterr().out


def test_maps_are_shown_and_fail_where_nothing_was_evicted(capsys):
    alone = run_of("plain", (step(), step()))
    one = Managed(ids=100, hits=50, own=80, late=25, inserted=6, evicted=3)
    tables = {"embeddings.table_items": one, "embeddings.table_users": Managed(ids=100)}
    served = replace(alone, zch=True, managed=tables, forwards=Forwards(served=7, plain={"new hour": 2, "first": 1}))
    show_maps(Outcome(pairs=((alone, served),), cost=COST), Terminal())
    shown = capsys.readouterr().out
    assert [line.split() for line in re.sub("[│┃]", " ", shown).splitlines() if "all" in line.split()[:1]] == [
        ["all", "200", "6", "3", "25", "40", "12.5"]
    ]
    assert "7 of 10 forwards served" in shown
    assert "plainly 2 times: new hour" in shown
    still = replace(served, managed={"embeddings.table_items": replace(one, evicted=0)})
    with pytest.raises(CommandFailed, match="no row was taken over"):
        show_maps(Outcome(pairs=((alone, still),), cost=COST), Terminal())


def test_other_tables_may_begin_with_another_loss():
    first, other = run_of("a", (step(), step())), run_of("b", (step(loss=6.5), step()))
    check_same_samples(first, replace(other, zch=True))
    with pytest.raises(CommandFailed, match="trained on different samples"):
        check_same_samples(first, replace(run_of("c", (step(checksum=8), step())), zch=True))
