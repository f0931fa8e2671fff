"""The terms of the pages, each with one plain sentence. A page shows those that its texts use."""

import re
from collections.abc import Iterator, Sequence

from freescale_tools.report.blocks import Code, Page, Plot, Points, Section, Table, Tiles

_TERMS = {
    "Bubble": (
        "bubble|idle time",
        "Time in which a GPU waits, for a slower rank or for communication.",
    ),
    "Collision": ("collision", "A row of an embedding table that two consecutive batches both use."),
    "Contention": ("contention", "Time that compute loses because transfers use the same GPU beside it."),
    "Event": ("events?", "One element of a history, such as one item that a user saw."),
    "Exclusive rows": ("exclusive", "Rows that the batch before does not use; they can be sent early."),
    "Exposed communication": ("exposed", "Communication that compute has to wait for."),
    "FBS": ("fbs", "Balancing with a fixed batch size: every rank gets equally many samples."),
    "FBS + swap": (r"fbs ?\+ ?swap", "FBS, then pairs of samples change places between ranks while that helps."),
    "Global batch": ("global batch(?:es)?", "The samples of all ranks in one step."),
    "Hierarchical": ("hierarchical", "Balancing that keeps most samples on the host they are on."),
    "Length": ("lengths?", "How many events the history of a sample has."),
    "Lower bound": (
        "lower bound|bound",
        "No plan with equal counts leaves a smaller straggler share: one sample may cost more than a mean rank.",
    ),
    "P95": ("p95", "Of 100 values, 95 are at most this; P50 is the median."),
    "Padding": ("padding", "The empty part of a batch whose histories are all filled up to the longest."),
    "Prioritized communication": (
        "prioritized",
        "Rows that compute waits for are sent first, others beside compute.",
    ),
    "QPS": ("qps", "Samples that all ranks together train per second."),
    "Rank": ("ranks?", "One process of the training job, usually one GPU."),
    "Repair": ("repair", "Balancing that moves few samples, from the slowest ranks only."),
    "Row group": ("row groups?", "A part of a Parquet file that is read as one."),
    "SM-free": ("sm-free", "Transfers that take no compute units (SMs) of the GPU."),
    "SparseDist": ("sparse ?dist|TrainPipelineSparseDist", "TorchRec's pipeline that sends ids one batch ahead."),
    "Step": ("steps?", "One batch on every rank: forward, backward, update."),
    "Straggler share": ("stragglers?", "The part of a step that the mean rank waits for the slowest rank."),
    "Tokens": ("tokens?|max_tokens", "Events and candidates together, where memory is counted."),
    "VBS": ("vbs", "Balancing with a variable batch size: ranks get equal work, not equally many samples."),
}


def glossary(page: Page) -> Section | None:
    """The last section of a page: its terms; None if it uses none."""
    text = "\n".join(_texts(page.sections))
    rows = [
        (term, sentence)
        for term, (pattern, sentence) in _TERMS.items()
        if re.search(rf"\b(?:{pattern})", text, re.IGNORECASE)
    ]
    if not rows:
        return None
    table = Table(title="What the words of this page mean", columns=("Term", "Meaning"), rows=rows, words=2)
    return Section(id="terms", title="Terms", blocks=(table,))


def _texts(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield from (section.title, section.intro)
        for block in section.blocks:
            match block:
                case Table():
                    yield from (block.title, block.note, *block.columns, *(cell for row in block.rows for cell in row))
                case Plot():
                    yield from (block.title, block.aid)
                    for trace in block.figure.data:
                        yield from (trace.name or "", *(one for one in trace.y if isinstance(one, str)))
                case Points():
                    yield from (block.title, *block.sentences)
                case Tiles():
                    yield from (text for tile in block.tiles for text in (tile.name, tile.note))
                case Code():
                    yield block.title
