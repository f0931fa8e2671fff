"""What a report holds, without a browser: figures, sentences, sizes, and how numbers are written."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import page_documents as documents
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs_version

from freescale_tools.profile.length_report import MOST_POINTS, log_bins, thinned
from freescale_tools.profile.straggler_report import best_method, method_name, straggler_section
from freescale_tools.report import numbers, plots
from freescale_tools.report import page as pages
from freescale_tools.report.blocks import Column, Look, Plot, Table
from freescale_tools.report.closing import MOST_SKIPPED
from freescale_tools.report.page import embedded, page

MEGABYTE = 1e6


def blocks(sections, kind=Plot):
    """By section and title; tables of plots are tables, too."""
    every = [(section.id, block) for section in sections for block in section.blocks]
    every += [(name, block.table) for name, block in every if isinstance(block, Plot) and block.table]
    return {(name, block.title): block for name, block in every if isinstance(block, kind)}


def tiles(document):
    return {tile.name: tile for tile in documents.report(document).sections[0].blocks[0].tiles}


def plain(text):
    return text.replace("\u00a0", " ")


@given(rows=st.lists(st.integers(0, 100_000), max_size=60))
def test_bins_hold_every_row_that_is_not_empty_and_its_events(rows):
    lengths, counts = np.unique(np.array(rows, np.int64), return_counts=True)
    edges, held, events = log_bins(lengths, counts)
    assert held.sum() == sum(row > 0 for row in rows)
    assert events.sum() == sum(rows)
    for low, high, value in zip(edges, edges[1:], held, strict=False):
        assert value == sum(low <= row < high for row in rows)


def test_the_distribution_is_that_of_all_rows_the_empty_ones_included():
    rows = np.array([0, 0, 1, 2, 5, 5, 40, 1000])
    lengths, counts = np.unique(rows, return_counts=True)
    document = documents.tiny()
    document["sequences"]["a"]["histogram"] = {"lengths": lengths.tolist(), "counts": counts.tolist()}
    found = blocks(documents.report(document).sections)
    drawn = found["lengths-0", "Cumulative share of rows and of events (%)"].figure
    for trace, of in zip(drawn.data, (np.ones(8), rows), strict=True):
        for length, share in zip(trace.x, trace.y, strict=True):
            assert share == pytest.approx(100 * of[rows <= length].sum() / of.sum(), rel=1e-3)


def test_sentences_tell_the_figures_of_the_data():
    document, found = documents.profile(), blocks(documents.usual().sections)
    sequence, grid = document["sequences"]["item_ids"], document["stragglers"]
    aid = found["lengths-0", "Share of rows and of events (%) by length (events)"].aid
    assert f"at most {sequence['quantiles']['p50']:,} events" in aid
    assert f"the longest has {sequence['max']:,}" in aid
    assert f"{sequence['empty']:,} empty ones are not drawn" in aid
    points = [one for one in grid["points"] if one["axis"] == "ranks"]
    best = best_method(points)
    none, least = (
        plain(numbers.percent(points[-1]["time_lost"][method], points[-1]["time_lost_error"][method]))
        for method in ("none", best)
    )
    aid = plain(found["stragglers", "Time lost (%) by ranks"].aid)
    assert f"At 16 ranks, ranks without balancing lose {none} of the time" in aid
    assert f"{method_name(best)} leaves {least}" in aid


def test_no_digit_is_smaller_than_the_error():
    for share, error, said in (
        (0.1937, 0.014, "19 %"), (0.1937, 0.0014, "19.4 %"), (0.1937, None, "19.4 %"), (0.1937, 0.0, "19.4 %"),
        (0.0123, 0.0004, "1.23 %"), (0.002, 0.02, "< 1 %"), (0.0, 0.02, "0 %"), (None, 0.02, "–"), (0.6, 0.2, "60 %"),
    ):  # fmt: skip
        assert plain(numbers.percent(share, error)) == said


def test_tables_and_sentences_know_the_error():
    grid = documents.profile()["stragglers"]
    for point in grid["points"]:
        point["time_lost_error"] = dict.fromkeys(point["time_lost"], 0.014)
    section = straggler_section(grid)
    aid = plain(blocks([section])["stragglers", "Time lost (%) by longest history kept"].aid)
    assert re.search(r"ranks without balancing lose \d+ % of the time", aid)
    for table in blocks([section], Table).values():
        names = [column.name for column in table.columns]
        for row in table.cells:
            assert "." not in row[names.index("hierarchical")], "no digit below the error"


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0.0, 0.0), "is 0 at every point: no sample costs more than a mean rank."),
        ((0.0, 0.385), "bound: 0 % at these settings, 38.5 % at most, with 8 ranks of 16 samples and histories of at"),
        ((0.02, 0.385), "bound: 2.00 % at these settings, 38.5 % at most"),
    ],
)
def test_the_introduction_tells_the_bound_of_the_data(bounds, said):
    grid = documents.profile()["stragglers"]
    for point in grid["points"]:
        usual = all(point[key] == value for key, value in grid["default"].items())
        point["bound_time_lost"] = bounds[0] if usual else 0.0
        if point["axis"] == "ranks" and point["ranks"] == 8:
            point["bound_time_lost"] = bounds[1]
    assert said in plain(straggler_section(grid).intro)


@pytest.mark.parametrize(
    ("first", "step", "shown", "unit"),
    [
        (1_750_000_000, 3600, "2025-06-15T15:06:40", "UTC, from seconds since 1970"),
        (1_750_000_000_000, 3_600_000, "2025-06-15T15:06:40", "UTC, from milliseconds since 1970"),
        (1_750_000_000_000_000_000, 3600 * 10**9, "2025-06-15T15:06:40", "UTC, from nanoseconds since 1970"),
        (7, 1, 7, "in the unit of the column"),
        ("2025-06-15T15:06:40", None, "2025-06-15T15:06:40", "date"),
    ],
)
def test_lengths_over_time_say_their_unit_and_stand_under_their_names(first, step, shown, unit):
    document = documents.profile(recommended=None, answer=None)
    drift = document["sequences"]["item_ids"]["drift"]
    for place, span in enumerate(drift):
        span["from"], span["to"] = (first if step is None else first + at * step for at in (place, place + 1))
    sections = documents.report(document).sections
    block = blocks(sections)["lengths-0", "Length over time (events)"]
    assert block.figure.data[0].x[0] == shown
    assert block.figure.layout.xaxis.title.text == f"time of the rows ({unit})"
    assert block.figure.layout.xaxis.tickformat == (",d" if shown == 7 else None), "thousands, not 1.75B"
    assert f"({numbers.moment(shown)})" in block.aid
    table = blocks(sections, Table)["lengths-0", f"Lengths over time ({unit})"]
    assert [column.heading for column in table.columns] == ["from", "before", "rows", "mean length", "median", "P95"]
    for row, span in zip(table.cells, drift, strict=True):
        assert row[2:] == [numbers.count(span[key]) for key in ("rows", "mean", "p50", "p95")]
    assert table.cells[0][0] == numbers.moment(shown)


def test_the_gain_is_that_of_the_verdict_over_torchrecs_pipeline():
    document = documents.profile()
    simulation = document["simulation"]
    verdict, ranks = simulation["verdict"], simulation["verdict"]["ranks"]
    found = tiles(document)
    assert found[f"QPS gain at {ranks} ranks"].value == numbers.signed(verdict["gains"]["all"]["value"])
    assert "over TrainPipelineSparseDist" in found[f"QPS gain at {ranks} ranks"].note
    table = blocks(documents.report(document).sections, Table)[
        "steps", "What FreeScale would bring over TrainPipelineSparseDist"
    ]
    points = {(point["ranks"], point["way"]): point for point in simulation["points"]}
    for row, gain in zip(table.cells, simulation["gain"], strict=True):
        cells = dict(zip((column.name for column in table.columns), row, strict=True))
        assert cells["step, sparse dist"] == numbers.number(points[gain["ranks"], "sparse dist"]["step_ms"])
        assert cells["both"] == numbers.signed(gain["qps_gain"])


def test_every_method_and_the_bound_are_drawn_over_every_axis_and_nothing_has_a_place_on_it():
    grid = documents.profile()["stragglers"]
    for point in grid["points"]:
        point["bound_time_lost"] = 0.0
        for place, method in enumerate(grid["methods"]):
            point["time_lost"][method] = 0.1 + 0.1 * place
    found = blocks([straggler_section(grid)])
    for axis, name in (("max_length", "longest history kept"), ("ranks", "ranks"), ("batch_size", "batch size")):
        points = sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
        drawn = {trace.name: trace for trace in found["stragglers", f"Time lost (%) by {name}"].figure.data}
        assert {method_name(method) for method in grid["methods"]} | {"lower bound"} <= drawn.keys()
        assert all(len(trace.x) == len(trace.y) == len(points) for trace in drawn.values())
        unbalanced = [100 * point["time_lost"]["none"] for point in points]
        assert drawn["no balancing"].y == pytest.approx(unbalanced, rel=1e-3)
        assert set(drawn["lower bound"].y) == {plots.LEAST}
        assert all(text.endswith("lower bound 0 %") for text in drawn["lower bound"].text)


def test_lines_that_lie_on_each_other_are_one_with_all_names():
    rows = [(1, 0.1, 0.1005, 0.2, None), (2, 0.3, 0.3, 0.3, None)]
    columns = [Column("x", numbers.COUNT, 0)]
    for place, (name, dash) in enumerate((("a", "solid"), ("b", "dot"), ("c", "solid"), ("d", "dash")), start=1):
        columns.append(Column(name, numbers.SHARE, place, look=Look(color=plots.BLUE, dash=dash)))
    drawn = plots.lines(rows, columns, x=plots.Axis("x"), y=plots.Axis("y", "log")).data
    assert [trace.name for trace in drawn] == ["a = b", "c", "d"]
    assert list(drawn[0].y) == [10, 30]


def test_a_timeline_draws_every_bar_on_its_lane():
    simulation = documents.profile()["simulation"]
    shown = {title: block for (_, title), block in blocks(documents.usual().sections).items() if "One step" in title}
    for (title, block), way in zip(shown.items(), (simulation["over"], "all"), strict=True):
        ranks = simulation["verdict"]["ranks"]
        assert f"{ranks} ranks" in title
        (point,) = (one for one in simulation["points"] if (one["way"], one["ranks"]) == (way, ranks))
        bars = {
            (lane, start, ms)
            for trace in block.figure.data
            for lane, start, ms in zip(trace.y, trace.base, trace.x, strict=True)
        }
        assert bars == {(bar["lane"], bar["start_ms"], bar["ms"]) for bar in point["timeline"]}


def test_every_cell_of_the_trade_off_table_is_that_of_its_column():
    document = documents.profile()
    document["tradeoff"] |= {"gpu_hour_price": 1.0}
    for point in document["tradeoff"]["points"]:
        point["money"] = 0.001234
    table = blocks(documents.report(document).sections, Table)["tradeoff", "Trade-off table"]
    for row, point in zip(table.cells, document["tradeoff"]["points"], strict=True):
        cells = dict(zip((column.heading for column in table.columns), row, strict=True))
        assert cells["events lost (%)"] == numbers.percent(point["events_lost"]).removesuffix("\u00a0%")
        assert cells["memory"] == numbers.size(point["bytes"])
        assert (cells["steps"], cells["money"]) == (numbers.count(point["steps"]), "0.00123")


def test_columns_find_their_values_and_shares_know_their_error():
    row = {"a": {"b": 0.1937}, "error": {"b": 0.014}, "t": "2024-05-01T10:00:00.25"}
    for column, heading, cell in (
        (Column("x", numbers.SHARE, "a.b"), "x (%)", "19.4"),
        (Column("x", numbers.SHARE, "a.b", error="error.b"), "x (%)", "19"),
        (Column("x", numbers.SHARE, "a.b", error="absent.b"), "x (%)", "19.4"),
        (Column("x", numbers.TIME, "t"), "x", "2024-05-01 10:00:00"),
        (Column("x", numbers.MS, lambda one: 100 * one["a"]["b"]), "x (ms)", "19.4"),
    ):
        assert (column.heading, column.cell(row)) == (heading, cell)
    assert Column("x", numbers.COUNT, 1).cell(("a", None)) == numbers.NOTHING


def test_parts_that_are_absent_leave_no_section_and_long_lists_are_cut():
    sections = [section.id for section in documents.report(documents.tiny()).sections]
    assert sections == ["summary", "lengths", "lengths-0", "assumptions", "terms"]
    lost = [{"file": f"{place}", "row_group": 1, "rows": 5, "reason": "r" * 5000} for place in range(MOST_SKIPPED + 7)]
    found = documents.report(documents.tiny() | {"skipped": lost})
    (table,) = (block for (section, _), block in blocks(found.sections, Table).items() if section == "skipped")
    assert (len(table.cells), table.notes) == (MOST_SKIPPED, ["7 more are in the JSON document."])
    assert thinned([1, 2, 3]) == [1, 2, 3]
    few = thinned(range(10_000))
    assert (len(few), few[0], few[-1]) == (MOST_POINTS, 0, 9999)


def test_tiles_have_room_for_their_figures():
    document = documents.tiny()
    for events, said in ((999_999_999, "999,999,999"), (6_847_477_148, "6.85 billion")):
        document["sequences"]["a"]["events"] = events
        assert tiles(document)["Events in a"].value == said


@pytest.mark.long
def test_the_page_stays_small_whatever_the_data():
    lengths = np.arange(100_000)
    document = documents.profile(paths=[f"s3://bucket/{'x' * 900}/{place}" for place in range(5000)])
    sequence = document["sequences"]["item_ids"]
    sequence["histogram"] = {"lengths": lengths.tolist(), "counts": np.full(len(lengths), 3).tolist()}
    one = {"rows": 3, "events": 9, "mean": 3.0}
    sequence["per_file"] = [{"file": f"{'y' * 400}-{place}", **one} for place in range(50_000)]
    sequence["drift"] *= 1000
    document["sequences"] = {f"column {place}": sequence for place in range(1000)}
    document["skipped"] = [
        {"file": f"{'z' * 900}-{place}", "row_group": 1, "rows": 5, "reason": "r" * 5000} for place in range(10_000)
    ]
    assert len(page(documents.report(document)).encode()) < 8 * MEGABYTE


def test_a_page_explains_the_terms_that_it_uses_and_no_others():
    def terms(sections):
        (section,) = (section for section in sections if section.id == "terms")
        return {term for term, _ in section.blocks[0].rows}

    found = terms(documents.usual().sections)
    assert {"Straggler %", "Time lost", "FBS + swap", "VBS", "Lower bound", "Exposed communication"} <= found
    found = terms(documents.report(documents.collisions_result()).sections)
    assert {"Collision", "Exclusive rows"} <= found
    assert not {"VBS", "Lower bound", "SM-free"} & found
    assert {"SM-free", "SparseDist"} <= terms(documents.usual().sections)
    assert not {"Collision", "Straggler %", "SM-free"} & terms(documents.report(documents.tiny()).sections)


def test_pages_are_small_enough_to_mail_and_the_bundle_draws_what_the_installed_plotly_makes():
    assert len(page(documents.usual()).encode()) < 1.5 * MEGABYTE
    bundle = gzip.decompress((Path(pages.__file__).parent / "bundle" / "plotly-cartesian.min.js.gz").read_bytes())
    of_bundle = re.search(rb"plotly.js \(cartesian - minified\) v(\d+)\.", bundle[:200])[1].decode()
    assert of_bundle == get_plotlyjs_version().split(".")[0]
    figures = [plot.figure.to_json() for plot in blocks(documents.usual().sections).values()]
    assert set(re.findall(r"#[0-9a-f]{6}", "".join(figures))) <= plots.DARK.keys(), "colors that the dark scheme lacks"


def test_figures_inside_the_page_are_json_that_ends_no_script():
    made = documents.report(documents.hostile())
    written = page(made)
    figures = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', written, flags=re.S)
    assert len(figures) == len(blocks(made.sections))
    assert all("data" in json.loads(figure) and "<" not in figure for figure in figures)
    assert documents.HOSTILE not in written
    text = json.dumps({"</script>": ["<!--", "a < b"]})
    assert "<" not in embedded(text)
    assert json.loads(embedded(text)) == json.loads(text)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.count(1_234_567), "1,234,567"),
        (numbers.count(20.8061), "20.8"),
        (numbers.count(None), "–"),
        (numbers.percent(0.2234), "22.3 %"),
        (numbers.percent(0.0241), "2.41 %"),
        (numbers.percent(0.0004), "0.040 %"),
        (numbers.percent(1e-7), "< 0.001 %"),
        (numbers.percent(0), "0 %"),
        (numbers.number(0.001234), "0.00123"),
        (numbers.number(1234.5), "1,234"),
        (numbers.signed(0.5), "+50 %"),
        (numbers.signed(-0.903), "−90 %"),
        (numbers.milliseconds(12.345), "12.3 ms"),
        (numbers.milliseconds(0.000507), "< 0.001 ms"),
        (numbers.size(17_784_325), "17.8 MB"),
        (numbers.size(999), "999 B"),
        (numbers.many(1, "row"), "1 row"),
        (numbers.many(2000, "row"), "2,000 rows"),
        (numbers.cost("Polynomial(linear=2000, quadratic=1, candidate=0)"), "2,000·L + L²"),
        (numbers.cost("Polynomial(linear=0, quadratic=2, candidate=7)"), "2·L² + 7·candidates"),
        (numbers.cost("Polynomial(linear=1, quadratic=0, candidate=0, sample=3000)"), "L + 3,000"),
        (numbers.cost("Power(alpha=1.5)"), "L^1.5"),
        (numbers.cost("Mine(1)"), "Mine(1)"),
        (numbers.moment("2024-05-01T00:00:00"), "2024-05-01"),
        (numbers.label("<b>%{x}"), "&lt;b&gt;% {x}"),
    ],
)
def test_how_numbers_and_names_are_written(written, expected):
    assert plain(written) == expected
