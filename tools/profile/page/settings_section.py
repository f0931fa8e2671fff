"""The section of recommended settings: code to paste, what the settings cost, and why they were chosen."""

from freescale_tools.profile.page.straggler_figures import method_name
from freescale_tools.report.blocks import Code, Document, Points, Section, Table
from freescale_tools.report.numbers import cost, count, percent, percent_within


def settings_section(advice: Document, grid: Document | None) -> Section:
    default = grid["default"] if grid else {}
    rows = [
        ("Longest history kept (max_length)", f"{count(advice['max_length'])} events"),
        ("Events cut off", percent(advice["events_cut"])),
        ("Method", method_name(advice["method"])),
        ("Cost of a sample of length L", cost(advice["cost_model"])),
        ("Most tokens of a rank (max_tokens)", count(advice["max_tokens"])),
        ("Straggler share with it", percent_within(advice["straggler"], advice["straggler_error"])),
        (
            "Straggler share without balancing",
            percent_within(advice["straggler_none"], advice["straggler_none_error"]),
        ),
        (
            "Lower bound of any plan with equal counts: one sample may cost more than a mean rank",
            percent(advice["lower_bound"]),
        ),
    ]
    where = f" for {count(default['ranks'])} ranks of {count(default['batch_size'])} samples" if default else ""
    return Section(
        id="settings",
        title="Recommended settings",
        intro=f"Settings to begin with{where}.",
        blocks=(
            Code(title="To paste", text=advice["code"]),
            Table(title="What they are and what they cost", columns=("Setting", "Value"), rows=rows, words=2),
            Points(title="Why", sentences=tuple(advice["why"])),
        ),
    )
