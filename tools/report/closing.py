"""What every report ends with: parts of files that were skipped, assumptions, and the words that it uses."""

import re
from collections.abc import Iterator, Sequence

from freescale_tools.report.blocks import Code, Column, Document, Plot, Points, Report, Section, Table, Tile, Tiles
from freescale_tools.report.numbers import COUNT, TEXT, count, many, short

MOST_SKIPPED = 200
_MOST_PATHS = 5
_EVERY_REPORT = "Shares and means are of the rows that could be read; empty and null histories count as rows."
_TERMS = {
    "Bubble": ("bubble|idle time", "Time in which a GPU waits, for a slower rank or for communication."),
    "Collision": ("collision", "A row of an embedding table that two consecutive batches both use."),
    "Contention": ("contention", "Time that compute loses because transfers use the same GPU beside it."),
    "Event": ("events?", "One element of a history, such as one item that a user saw."),
    "Exclusive rows": ("exclusive", "Rows that the batch before does not use; they can be sent early."),
    "Exposed communication": ("exposed", "Communication that compute has to wait for."),
    "FBS": ("fbs", "Balancing with a fixed batch size: every rank gets equally many samples."),
    "FBS + swap": (r"fbs ?\+ ?swap", "FBS, then pairs of samples change places between ranks while that helps."),
    "Global batch": ("global batch(?:es)?", "The samples of all ranks in one step."),
    "Hierarchical": ("hierarchical", "Balancing that keeps most samples on the host they are on."),
    "Index dedup": (
        "index dedup",
        "TorchRec's use_index_dedup: a rank sends each distinct id of its batch, its row and its gradient once.",
    ),
    "Length": ("lengths?", "How many events the history of a sample has."),
    "Lower bound": (
        "lower bound|bound",
        "No plan with equal counts leaves a smaller straggler share: one sample may cost more than a mean rank.",
    ),
    "MPZCH": (
        "mpzch",
        "Multi-probe zero collision hashing: an id looks at several rows of the table for one of its own.",
    ),
    "P95": ("p95", "Of 100 values, 95 are at most this; P50 is the median."),
    "Padding": ("padding", "The empty part of a batch whose histories are all filled up to the longest."),
    "Pinned": ("pinned|pin_memory", "Page-locked host memory, from which a GPU copies while the host does other work."),
    "Prioritized communication": ("prioritized", "Rows that compute waits for are sent first, others beside compute."),
    "QPS": ("qps", "Samples that all ranks together train per second."),
    "Rank": ("ranks?", "One process of the training job, usually one GPU."),
    "Repair": ("repair", "Balancing that moves few samples, from the slowest ranks only."),
    "Row group": ("row groups?", "A part of a Parquet file that is read as one."),
    "SM-free": ("sm-free", "Transfers that take no compute units (SMs) of the GPU."),
    "SparseDist": ("sparse ?dist|TrainPipelineSparseDist", "TorchRec's pipeline that sends ids one batch ahead."),
    "Step": ("steps?", "One batch on every rank: forward, backward, update."),
    "Straggler %": ("stragglers?", "The mean over steps of 1 - mean / slowest rank, as the paper defines it."),
    "Time lost": (
        "time lost",
        "1 - sum of mean ranks / sum of slowest ranks: the share of the compute time that stragglers cost.",
    ),
    "Tokens": ("tokens?|max_tokens", "Events and candidates together, where memory is counted."),
    "VBS": ("vbs", "Balancing with a variable batch size: ranks get equal work, not equally many samples."),
}
"""Term -> the pattern of the words that need it, and what it means."""


def in_short(tiles: Sequence[Tile]) -> Section:
    """The key figures of a report, as its first section."""
    return Section(id="summary", title="In short", blocks=(Tiles(tiles=tiles),))


def closed(
    document: Document,
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    assumptions: Sequence[str],
    parameters: Sequence[Table] = (),
    skipped: Sequence[Document] = (),
) -> Report:
    """The report of a document: `sections`, then skipped files, assumptions with tables of parameters, and terms."""
    subtitle = f"Of the profile {short(document['profile'])}" if document.get("profile") else ""
    if paths := document.get("paths"):
        more = f" and {count(len(paths) - _MOST_PATHS)} more" if len(paths) > _MOST_PATHS else ""
        subtitle = ", ".join(short(path) for path in paths[:_MOST_PATHS]) + more
    if document.get("created"):
        facts = [*facts, ("Made", str(document["created"]).replace("T", " ").replace("+00:00", " UTC"))]
    sentences = Points(title="How the figures came about", sentences=(_EVERY_REPORT, *assumptions), on_terminal=False)
    sections = [
        *sections,
        *([_skipped(skipped)] if skipped else []),
        Section(id="assumptions", title="Assumptions", blocks=(sentences, *parameters)),
    ]
    text = "\n".join(_texts(sections))
    terms = [
        (term, meaning)
        for term, (pattern, meaning) in _TERMS.items()
        if re.search(rf"\b(?:{pattern})", text, re.IGNORECASE)
    ]
    if terms:
        columns = (Column("Term", TEXT, 0), Column("Meaning", TEXT, 1))
        table = Table(title="What the words of this page mean", columns=columns, rows=terms, on_terminal=False)
        sections.append(Section(id="terms", title="Terms", blocks=(table,)))
    return Report(title=title, subtitle=subtitle, facts=facts, sections=sections)


def _skipped(skipped: Sequence[Document]) -> Section:
    """Findings name them on the terminal, while the command runs."""
    left = len(skipped) - MOST_SKIPPED
    table = Table(
        title="Files and row groups that were left out",
        columns=(
            Column("File", TEXT, "file"),
            Column("Row group", TEXT, lambda one: "all" if one["row_group"] is None else count(one["row_group"])),
            Column("Reason", TEXT, "reason"),
            Column("Rows", COUNT, "rows"),
        ),
        rows=skipped[:MOST_SKIPPED],
        notes=[f"{count(left)} more are in the JSON document."] if left > 0 else [],
        on_terminal=False,
    )
    rows, files = sum(one["rows"] or 0 for one in skipped), len({one["file"] for one in skipped})
    intro = (
        f"{many(len(skipped), 'part')} of {many(files, 'file')} could not be read; {many(rows, 'row')} are known "
        "to be missing from the figures on this page."
    )
    return Section(id="skipped", title="Skipped", intro=intro, blocks=(table,))


def _texts(sections: Sequence[Section]) -> Iterator[str]:
    """All that a reader of the page reads, but code."""
    for section in sections:
        yield from (section.title, section.intro)
        for block in section.blocks:
            table = block if isinstance(block, Table) else None
            match block:
                case Plot():
                    yield from (block.title, block.aid, *(trace.name or "" for trace in block.figure.data))
                    table = block.table
                case Points():
                    yield from (block.title, *block.sentences)
                case Tiles():
                    yield from (text for tile in block.tiles for text in (tile.name, tile.note))
                case Code():
                    yield block.title
            if table is not None:
                yield from (table.title, *table.notes, *(column.name for column in table.columns))
                yield from (cell for row in table.cells for cell in row)
