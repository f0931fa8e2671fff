"""What balancing leaves of the straggler share, what plans and moves cost."""

from figures.records import Record, record, say, short, table


def stragglers() -> None:
    record_ = record("stragglers")
    row = paper_like(record_)
    table(
        ["", "straggler share"],
        [
            ["without balancing", f"{row['none']:.1f} %"],
            ["the paper's zig-zag (`fbs`)", f"{row['fbs']:.1f} %"],
            ["FreeScale's default (`fbs+swap`)", f"{row['fbs+swap']:.3f} %"],
        ],
        record_,
    )


def paper_like(stragglers: Record) -> dict:
    """64 ranks, lengths of the paper, planned with the true cost."""
    return stragglers.row(case="true cost", ranks=64)


def methods() -> None:
    packing = record("packing")
    counts = {
        "none": "equal",
        "fbs": "equal",
        "fbs+swap": "equal",
        "vbs": "within your limits",
        "vbs-contiguous": "free",
        "repair": "equal",
        "hierarchical": "equal",
    }
    rows = []
    for method, count in counts.items():
        each = packing.where(method=method)
        moved = sorted(one["moved %"] for one in each)
        between = f", {each[0]['crossing %']:.1f} % between nodes" if method == "hierarchical" else ""
        rows.append([
            method if method == "none" else f"`{method}`",
            count,
            *(f"{one['straggler %']:.1g}" if one["straggler %"] < 1 else f"{one['straggler %']:.0f}" for one in each),
            _range(moved[0], moved[-1]) + between,
            *("" if method == "none" else short(one["ms"]) for one in each),
        ])  # fmt: skip
    sizes = [f"{one['ranks']:,} ranks" for one in packing.where(method="none")]
    sorting = [short(one["argsort ms"]) for one in packing.where(method="none")]
    header = [f"straggler share %, {sizes[0]}", *sizes[1:], "tokens that change rank", f"ms of a plan, {sizes[0]}"]
    table(
        ["method", "counts per rank", *header, *sizes[1:]],
        [*rows, ["sorting the costs with numpy", *[None] * 5, *sorting]],
        packing,
    )


def wrong_costs() -> None:
    stragglers = record("stragglers")
    row = stragglers.row(case="planned by tokens")
    say(
        f"If plans use token counts only, a straggler share of {row['repair']:.0f} % remains with `repair` and "
        f"`hierarchical`, and {row['fbs+swap']:.1f} % with `fbs+swap` (paper-like lengths).",
        stragglers,
    )


def _range(least: float, most: float) -> str:
    first, last = (short(value) for value in (least, most))
    return f"{first} %" if first == last else f"{first}-{last} %"
