"""One answer: a sentence for each remedy, from what a profile has predicted. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from freescale_tools.report.numbers import count, percent, short, signed

_BLOCKED = 0.8  # of what ranks wait, if single samples cause it: then balancing waits for shorter histories


def answer(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """{remedy, pays, said} of balancing, fscomm, both, and of a cut where single histories outweigh a rank."""
    return [*_balance(document), *_cut(document), *_fscomm(document), *_both(document)]


def blocked(advice: Mapping[str, Any]) -> bool:
    """Whether single histories that are not cut cause most of the waiting, so that no plan helps much."""
    cut = advice["even_cut"]
    return cut is not None and advice["max_length"] > cut["max_length"] and advice["single"] >= _BLOCKED


def _gain(document: Mapping[str, Any], remedy: str) -> str:
    """`+31 % (24 to 38)`."""
    gain = document["simulation"]["verdict"]["gains"][remedy]
    return f"{signed(gain['value'])} ({_whole(gain['low'])} to {_whole(gain['high'])})"


def _whole(share: float) -> str:
    return signed(share).removesuffix("\u00a0%").removeprefix("+")


def _size(document: Mapping[str, Any]) -> str:
    found = document["balance"]
    return f"{count(found['ranks'])} ranks of {count(found['batch_size'])} samples"


def _balance(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    found, advice = document["balance"], document["recommended"]
    pays, gain = document["simulation"]["verdict"]["pays"]["balance"], _gain(document, "balance")
    if blocked(advice):
        longest, cut = next(iter(document["sequences"].values()))["max"], advice["even_cut"]
        yield {
            "remedy": "balance", "pays": "not yet",
            "said": f"Do nothing yet: single histories cause {percent(advice['single'])} of the wait, the longest has "
            f"{count(longest)} events; cut at {count(cut['max_length'])} (loses "
            f"{percent(cut['events_lost'])} of the events, touches {percent(cut['rows_touched'])} of the rows) or "
            f"split them. Balancing alone brings {gain} at {_size(document)}.",
        }  # fmt: skip
        return
    lost = found["orders"]["shuffled"]["time_lost"]
    yield {
        "remedy": "balance", "pays": pays,
        "said": f"Balance: {pays}, {gain} at {_size(document)}: stragglers cost {percent(lost['none'])} of the compute "
        f"time, {percent(lost['balanced'])} if balanced.",
    }  # fmt: skip


def _cut(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    advice = document["recommended"]
    cut = advice["even_cut"]
    if cut is None or blocked(advice):
        return
    taken = advice["max_length"] == cut["max_length"]
    price = (
        f"loses {percent(cut['events_lost'])} of the events, touches {percent(cut['rows_touched'])} of the rows: "
        f"balanced ranks lose {percent(cut['time_lost'], cut['time_lost_error'])} of the time instead of "
        f"{percent(cut['time_lost_uncut'], cut['time_lost_uncut_error'])}"
    )
    pays = "yes" if taken else "costs events"
    yield {"remedy": "cut", "pays": pays, "said": f"Cut at {count(cut['max_length'])}: {pays}, {price}."}


def _fscomm(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    simulation = document["simulation"]
    verdict = simulation["verdict"]
    pays, touched = verdict["pays"]["communication"], verdict["touched"]
    counted = "" if document["collisions"] else ", if 12 % of the rows collide as the paper's do: they were not counted"
    yield {
        "remedy": "fscomm", "pays": pays,
        "said": f"fscomm: {pays}, {_gain(document, 'communication')}: {percent(touched['exposed'])} of a balanced step "
        f"is exposed communication on {short(simulation['hardware']['name'])}, and fscomm can overlap "
        f"{percent(touched['overlapped'])} of the step{counted}.",
    }  # fmt: skip


def _both(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    pays = document["simulation"]["verdict"]["pays"]["all"]
    said = f"Both: {pays}, {_gain(document, 'all')} over TrainPipelineSparseDist."
    yield {"remedy": "all", "pays": pays, "said": said}
