"""The sentences of a profile's answer: what to try first, and what it says where something was not counted."""

import dataclasses

import numpy as np
import pytest
from tools_kit import profile_of

from freescale_tools.model.hardware import load_hardware
from freescale_tools.model.simulation import NOT_COUNTED, verdict
from freescale_tools.model.workload import at_ranks, samples_of, workload
from freescale_tools.profile.answer import answer
from freescale_tools.report.numbers import signed

RANKS = 16
DATA = profile_of(np.full(20_000, 1000))
LOAD = at_ranks(workload(DATA), samples_of(DATA), [RANKS])
LOST = {"time_lost": {"none": 0.1, "balanced": 0.0}}


def document(distinct, **options):
    load = dataclasses.replace(LOAD, distinct=distinct, colliding_distinct=distinct)
    found = verdict(load_hardware("h100-ib"), load, ranks=RANKS, collisions=True, **options)
    return {
        "simulation": {"verdict": found, "hardware": {"name": "h100-ib"}},
        "balance": {"ranks": RANKS, "batch_size": 128, "orders": {"shuffled": LOST}},
        "recommended": {"even_cut": None, "max_length": 1000, "single": 0.0},
        "collisions": {"column": "items"},
    }


def said(found):
    return {one["remedy"]: one["said"].replace("\u00a0", " ") for one in answer(found)}


def test_index_dedup_and_pinned_copies_come_before_fscomm():
    found = document(0.02, uncounted="")
    gains, sentences = found["simulation"]["verdict"]["gains"], said(found)
    assert list(sentences) == ["balance", "dedup", "pinned", "fscomm", "all"]

    def gain(name):
        return signed(gains[name]["value"]).replace("\u00a0", " ")

    assert sentences["dedup"].startswith(f"Index dedup: yes, {gain('dedup')} (")
    assert "98.0 % of the ids of a rank's batch are duplicates. Turn it on first: " in sentences["dedup"]
    assert sentences["dedup"].endswith("EmbeddingCollectionSharder(use_index_dedup=True).")
    assert f"{gain('communication_dedup')} (" in sentences["fscomm"]
    assert ") after index dedup: " in sentences["fscomm"]
    assert "of a balanced step with it is exposed" in sentences["fscomm"]
    assert sentences["all"].startswith("All three: ")
    assert f"{gain('all_dedup')} (" in sentences["all"]
    assert "MB of a batch take 1.0" in sentences["pinned"]
    assert "With pin_memory=True they take 0.04" in sentences["pinned"]


def test_where_no_id_repeats_fscomm_is_over_the_balanced_pipeline():
    found = document(1.0, uncounted="")
    gains, sentences = found["simulation"]["verdict"]["gains"], said(found)
    assert sentences["dedup"].startswith("Index dedup: no, ")
    assert "Turn it on" not in sentences["dedup"]
    assert signed(gains["communication"]["value"]).replace("\u00a0", " ") in sentences["fscomm"]
    assert "index dedup" not in sentences["fscomm"]
    assert sentences["all"].startswith("Both: ")


@pytest.mark.parametrize("why", ["ids were counted elsewhere. Count them", None])
def test_ids_that_were_not_counted_are_said_to_be_unknown(why):
    found = document(0.02, **({"uncounted": why} if why else {}))
    assert said(found)["dedup"] == f"Index dedup: unknown, {why or NOT_COUNTED}."
    assert "Index dedup" not in said(found)["fscomm"]
