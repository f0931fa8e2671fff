"""One answer: a sentence for each remedy, from what a profile has predicted. Pure.

What TorchRec and PyTorch have themselves comes before fscomm: index dedup, then pinned copies of the input.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from freescale_tools.report.numbers import count, milliseconds, percent, short, signed, size

_BLOCKED = 0.8  # of what ranks wait, if single samples cause it: then balancing waits for shorter histories


def answer(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """{remedy, pays, said} of each remedy, in the order to try them; of a cut where single histories outweigh ranks.

    `pays` of index dedup is "unknown" where it was not counted how often ids repeat.
    """
    remedies = (_balance, _cut, _dedup, _pinned, _fscomm, _both)
    return [one for remedy in remedies for one in remedy(document)]


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


def _dedup(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    verdict = document["simulation"]["verdict"]
    share, unknown = verdict["duplicates"]["share"], verdict["duplicates"]["unknown"]
    if unknown:
        yield {"remedy": "dedup", "pays": "unknown", "said": f"Index dedup: unknown, {unknown}."}
        return
    pays, repeated = verdict["pays"]["dedup"], f"{percent(share)} of the ids of a rank's batch are duplicates"
    if verdict["first"] == "dedup":
        said = (
            f"Index dedup: {pays}, {_gain(document, 'dedup')} over balanced batches: {repeated}. Turn it on first: "
            "EmbeddingCollectionSharder(use_index_dedup=True)."
        )
    else:
        said = f"Index dedup: {pays}, {_gain(document, 'dedup')}: {repeated}."
    yield {"remedy": "dedup", "pays": pays, "said": said}


def _pinned(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    verdict = document["simulation"]["verdict"]
    pays, copies = verdict["pays"]["pinned"], verdict["copies"]
    said = (
        f"Pinned copies: {pays}, {_gain(document, 'pinned')} for a loop without: {size(copies['bytes'])} of a batch "
        f"take {milliseconds(copies['pageable_ms'])} to the GPU. With pin_memory=True they take "
        f"{milliseconds(copies['pinned_ms'])}, which overlap with compute if the batch is copied one step ahead."
    )
    yield {"remedy": "pinned", "pays": pays, "said": said}


def _fscomm(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    simulation = document["simulation"]
    verdict = simulation["verdict"]
    after = verdict["first"] == "dedup"
    remedy = "communication_dedup" if after else "communication"
    pays, touched = verdict["pays"][remedy], verdict["touched"]
    counted = "" if document["collisions"] else ", if 12 % of the rows collide as the paper's do: they were not counted"
    yield {
        "remedy": "fscomm", "pays": pays,
        "said": f"fscomm: {pays}, {_gain(document, remedy)}{' after index dedup' if after else ''}: "
        f"{percent(touched['exposed'])} of a balanced step{' with it' if after else ''} is exposed communication on "
        f"{short(simulation['hardware']['name'])}, and fscomm can overlap "
        f"{percent(touched['overlapped'])} of the step{counted}.",
    }  # fmt: skip


def _both(document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    verdict = document["simulation"]["verdict"]
    remedy, name = ("all_dedup", "All three") if verdict["first"] == "dedup" else ("all", "Both")
    pays = verdict["pays"][remedy]
    said = f"{name}: {pays}, {_gain(document, remedy)} over TrainPipelineSparseDist."
    yield {"remedy": "all", "pays": pays, "said": said}
