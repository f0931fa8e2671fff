"""The section about collisions: shared rows along every axis, and the bytes that a step sends."""

from collections.abc import Iterator, Sequence

from freescale_tools.collisions import page_figures as figures
from freescale_tools.report.blocks import Block, Document, Plot, Points, Section, Table
from freescale_tools.report.numbers import count, many, percent, short, size

_AXES = (
    ("batch_size", "batch size (samples of a rank)"),
    ("ranks", "ranks"),
    ("max_length", "history length (events)"),
)
_UNITS = {"batch_size": "samples of a rank", "ranks": "ranks", "max_length": "events of a history"}


def collision_section(collisions: Document) -> Section:
    """Curves along every axis, orders, bytes by class, and all points."""
    where = (
        f"{count(collisions['ranks'])} ranks of {count(collisions['batch_size'])} samples, histories of at most "
        f"{count(collisions['max_length'])} events"
    )
    return Section(
        id="collisions",
        title="Collisions",
        intro=f"A row of {short(collisions['column'])} that the batch before also uses cannot be fetched ahead: it "
        "has to be updated first. By occurrence every event counts, which is what gradients weigh; by row each "
        f"distinct row counts once. Where nothing else is said: {where}; {count(collisions['sampled_pairs'])} pairs "
        "of batches were counted.",
        blocks=tuple(_blocks(collisions)),
    )


def bytes_sent(collisions: Document) -> tuple[float, float]:
    """(all bytes, bytes of collisions) that a rank sends in a step."""
    sent = {name: value or 0.0 for name, value in collisions["bytes"].items()}
    return sum(sent.values()), sent.get("collision_rows", 0.0) + sent.get("collision_gradients", 0.0)


def _blocks(collisions: Document) -> Iterator[Block]:
    points = collisions["points"]
    for axis, title in _AXES:
        own = sorted((point for point in points if point["axis"] == axis), key=lambda point: point[axis])
        if len(own) > 1:
            yield Plot(
                title=f"Collision rate (%) by {title}",
                aid=_aid(own, axis),
                figure=figures.collisions(own, axis),
                height=380,
                half=True,
            )
    own = [point for point in points if point["axis"] == "order"]
    if own:
        yield Plot(
            title="Collision rate (%) by order of the samples",
            aid=_order_aid(own),
            figure=figures.orders(own),
            height=380,
            half=True,
        )
    if bytes_sent(collisions)[0]:
        yield _bytes(collisions)
    notes = [*(collisions.get("notes") or ()), *_left_out(collisions.get("left_out") or ())]
    if notes:
        yield Points(title="Notes", sentences=tuple(notes))
    yield _table(points)


def _aid(points: Sequence[Document], axis: str) -> str:
    first, last = points[0], points[-1]
    return (
        f"From {count(first[axis])} to {count(last[axis])} {_UNITS[axis]}, the share of occurrences goes from "
        f"{percent(first['by_occurrence']['mean'])} to {percent(last['by_occurrence']['mean'])} "
        f"(P99 {percent(last['by_occurrence']['p99'])}), that of distinct rows from "
        f"{percent(first['by_row']['mean'])} to {percent(last['by_row']['mean'])}."
    )


def _order_aid(points: Sequence[Document]) -> str:
    said = ", ".join(f"{percent(point['by_occurrence']['mean'])} in {point['order']} order" for point in points)
    return f"By occurrence: {said}. Whiskers reach up to P99."


def _bytes(collisions: Document) -> Block:
    total, of_collisions = bytes_sent(collisions)
    return Plot(
        title="Bytes that leave a rank in a step, by class (MB)",
        aid=f"With embeddings of {count(collisions['dim'])} float32 values, a rank sends {size(total)} a step. "
        f"The {size(of_collisions)} of collisions ({percent(of_collisions / total)}) have to be waited for, "
        "the rest can travel beside compute.",
        figure=figures.byte_classes(collisions["bytes"]),
        height=290,
    )


def _left_out(spots: Sequence[Document]) -> Iterator[str]:
    if spots:
        most = max(spot["rows"] for spot in spots)
        yield (
            f"Left out: {many(len(spots), 'point')}, where two batches would be more rows than there are (up to "
            f"{count(most)})."
        )


def _table(points: Sequence[Document]) -> Table:
    return Table(
        title=f"All {count(len(points))} counted points",
        columns=(
            "Axis",
            "Order",
            "Batch",
            "Ranks",
            "Events",
            "Pairs",
            "By occurrence, mean",
            "P50",
            "P99",
            "By row, mean",
            "P50",
            "P99",
            "Occurrences of a batch",
            "Distinct rows",
        ),
        rows=[
            (
                point["axis"].replace("_", " "),
                point["order"],
                *(count(point[key]) for key in ("batch_size", "ranks", "max_length", "pairs")),
                *(percent(point["by_occurrence"][key]) for key in ("mean", "p50", "p99")),
                *(percent(point["by_row"][key]) for key in ("mean", "p50", "p99")),
                count(round(point["occurrences"])),
                count(round(point["distinct"])),
            )
            for point in points
        ],
        words=2,
        folded=True,
    )
