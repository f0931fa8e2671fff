"""What stands on the page, without a browser: figures, sentences, sizes, and how the file is written."""

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

from freescale_tools.profile.page.length_figures import MOST_POINTS, distribution, log_bins, thinned
from freescale_tools.profile.page.length_sections import length_sections
from freescale_tools.profile.page.straggler_figures import method_name, stragglers
from freescale_tools.profile.page.straggler_sections import best_method, straggler_section
from freescale_tools.profile.page.tradeoff_section import tradeoff_section
from freescale_tools.report import numbers, page
from freescale_tools.report.assemble import MOST_SKIPPED
from freescale_tools.report.blocks import Plot, Table
from freescale_tools.report.page import embedded, render, write_page
from freescale_tools.report.theme import DARK
from freescale_tools.simulate.page.page import simulation_page
from freescale_tools.simulate.page.step_figures import timeline, work_class

MEGABYTE = 1e6


def blocks(sections, kind=Plot):
    """By section and title."""
    return {
        (section.id, block.title): block for section in sections for block in section.blocks if isinstance(block, kind)
    }


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
    drawn = distribution({"histogram": {"lengths": lengths, "counts": counts}}, max_length=None)
    for trace, of in zip(drawn.data, (np.ones(8), rows), strict=True):
        for length, share in zip(trace.x, trace.y, strict=True):
            assert share == pytest.approx(100 * of[rows <= length].sum() / of.sum(), rel=1e-3)


def test_sentences_tell_the_figures_of_the_data():
    document, found = documents.profile(), blocks(documents.usual_page().sections)
    sequence, grid = document["sequences"]["item_ids"], document["stragglers"]
    aid = found["lengths-0", "Share of rows and of events (%) by length (events)"].aid
    assert f"at most {sequence['quantiles']['p50']:,} events" in aid
    assert f"the longest has {sequence['max']:,}" in aid
    assert f"{sequence['empty']:,} empty ones are not drawn" in aid
    points = [one for one in grid["points"] if one["axis"] == "ranks"]
    best = best_method(points)
    none, least = (
        plain(numbers.percent_within(points[-1]["straggler"][method], points[-1]["straggler_error"][method]))
        for method in ("none", best)
    )
    aid = plain(found["stragglers", "Straggler share (%) by ranks"].aid)
    assert f"At 64 ranks, ranks without balancing idle {none} of the time" in aid
    assert f"{method_name(best)} leaves {least}" in aid
    aid = plain(found["stragglers", "Straggler share (%) by what the plan believes"].aid)
    assert re.search(r"planned by L\S*, .* leaves [\d.]+ % instead of ", aid)
    gain = document["simulation"]["gain"][-1]
    assert f"{numbers.signed(gain['qps_gain'])} at {gain['ranks']}" in found["steps", "QPS gain (%) by ranks"].aid


def test_maps_of_one_quantity_share_their_colours():
    points = documents.profile()["stragglers"]["points"]
    found = blocks(documents.usual_page().sections)
    maps = [block.figure.data[0] for (_, title), block in found.items() if "by ranks and longest history" in title]
    assert len(maps) == 2
    (low,), (high,) = ({getattr(one, end) for one in maps} for end in ("zmin", "zmax"))
    two_way = [point["straggler"] for point in points if point["axis"] == "two-way"]
    shares = [np.log10(max(100 * of[method], 0.001)) for of in two_way for method in ("none", "fbs+swap")]
    assert (low, high) == (pytest.approx(min(shares)), pytest.approx(max(shares)))
    cells = [cell for one in maps for row in one.z for cell in row]
    assert (min(cells), max(cells)) == (low, high)
    assert [one.showscale for one in maps] == [False, True]


@pytest.mark.parametrize(
    ("share", "error", "said"),
    [(0.1937, 0.014, "19 %"), (0.1937, 0.0014, "19.4 %"), (0.1937, None, "19.4 %"), (0.1937, 0.0, "19.4 %"),
     (0.0123, 0.0004, "1.23 %"), (0.002, 0.02, "< 1 %"), (0.0, 0.02, "0 %"), (None, 0.02, "–"), (0.6, 0.2, "60 %")],
)  # fmt: skip
def test_no_digit_is_smaller_than_the_error(share, error, said):
    assert plain(numbers.percent_within(share, error)) == said


def test_maps_tables_and_sentences_know_the_error():
    grid = documents.profile()["stragglers"]
    for point in grid["points"] + grid["wrong_model"]:
        point["straggler_error"] = dict.fromkeys(point["straggler"], 0.014)
    section = straggler_section(grid)
    aid = plain(blocks([section])["stragglers", "Straggler share (%) by longest history kept (events)"].aid)
    assert re.search(r"ranks without balancing idle \d+ % of the time", aid)
    for (_, title), block in blocks([section]).items():
        if "without balancing, by ranks" in title:
            assert not any("." in cell for row in block.figure.data[0].text for cell in row)
    (table,) = blocks([section], Table).values()
    assert all("." not in row[-1] for row in table.rows)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0.0, 0.0), "is 0 at every point: no sample costs more than a mean rank."),
        ((0.0, 0.385), "mean rank; it is 38.5 % at most, with 64 ranks of 32 samples and histories of at most"),
        ((0.02, 0.385), "costs more than a mean rank: 2.00 % at these settings, 38.5 % at most."),
    ],
)
def test_the_introduction_tells_the_bound_of_the_data(bounds, said):
    grid = documents.profile()["stragglers"]
    for point in grid["points"]:
        usual = all(point[key] == value for key, value in grid["default"].items())
        point["lower_bound"] = bounds[0] if usual else 0.0
        if point["axis"] == "batch_size" and point["batch_size"] == 32:
            point["lower_bound"] = bounds[1]
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
    sequences = documents.profile()["sequences"]
    drift = sequences["item_ids"]["drift"]
    for place, span in enumerate(drift):
        span["from"], span["to"] = (first if step is None else first + at * step for at in (place, place + 1))
    sections = list(length_sections(sequences, {}, None))
    block = blocks(sections)["lengths-0", "Length over time (events)"]
    assert block.figure.data[0].x[0] == shown
    assert block.figure.layout.xaxis.title.text == f"time of the rows ({unit})"
    assert block.figure.layout.xaxis.tickformat == (",d" if shown == 7 else None), "thousands, not 1.75B"
    assert f"({numbers.moment(shown)})" in block.aid
    table = blocks(sections, Table)["lengths-0", f"Lengths over time ({unit})"]
    assert table.columns == ("From", "Before", "Rows", "Mean length", "Median", "P95")
    for row, span in zip(table.rows, drift, strict=True):
        assert list(row[2:]) == [numbers.count(span[key]) for key in ("rows", "mean", "p50", "p95")]
    assert table.rows[0][0] == numbers.moment(shown)


def test_the_gain_is_that_of_the_verdict_over_torchrecs_pipeline():
    document = documents.simulate_result()
    simulation = document["simulation"]
    verdict, ranks = simulation["verdict"], simulation["verdict"]["ranks"]
    found = {tile.name: tile for tile in simulation_page(document).sections[0].blocks[0].tiles}
    assert found[f"QPS gain at {ranks} ranks"].value == numbers.signed(verdict["gains"]["all"]["value"])
    assert "over TrainPipelineSparseDist" in found[f"QPS gain at {ranks} ranks"].note
    points = {(point["ranks"], point["way"]): point for point in simulation["points"]}
    step = numbers.milliseconds(points[ranks, "sparse dist"]["step_ms"])
    assert found[f"Step at {ranks} ranks"].note == f"instead of {step} with TrainPipelineSparseDist"
    simulation["carried"]["ranks"] = 16
    traces = blocks(simulation_page(document).sections)["steps", "QPS gain (%) by ranks"].figure.data
    assert {trace.name: (trace.x[0], trace.x[-1]) for trace in traces} == {
        "more ranks than the rows are enough for": (16, 64),
        "enough rows": (8, 16),
    }
    simulation["carried"]["ranks"] = None
    rows = f"{simulation['carried']['rows']:,} rows"
    found = {tile.name: tile for tile in simulation_page(document).sections[0].blocks[0].tiles}["QPS gain"]
    assert found.value == "not known"
    assert found.note.startswith(f"The {rows} are too few for 8 ranks of 16")


def test_every_method_and_the_bound_are_drawn_over_every_axis_and_nothing_has_a_place_on_it():
    grid = documents.profile()["stragglers"]
    for point in grid["points"]:
        point["lower_bound"] = 0.0
    for axis in ("max_length", "ranks", "batch_size"):
        points = sorted((point for point in grid["points"] if point["axis"] == axis), key=lambda point: point[axis])
        drawn = stragglers(grid, axis, sparsity=False)
        assert [trace.name for trace in drawn.data][-1] == "lower bound"
        assert len(drawn.data) == len(grid["methods"]) + 1
        assert all(len(trace.x) == len(trace.y) == len(points) for trace in drawn.data)
        assert drawn.data[0].y == pytest.approx([100 * point["straggler"]["none"] for point in points], rel=1e-3)
        assert set(drawn.data[-1].y) == {0.001}
        assert set(drawn.data[-1].text) == {"0\u00a0%"}


@pytest.mark.parametrize("way", ["plain", "all"])
def test_a_timeline_draws_every_bar_on_its_lane(way):
    (point, *_) = (one for one in documents.profile()["simulation"]["points"] if one["way"] == way)
    bars = {
        (lane, start, ms)
        for trace in timeline(point, until_ms=point["step_ms"]).data
        for lane, start, ms in zip(trace.y, trace.base, trace.x, strict=True)
    }
    assert bars == {(bar["lane"], bar["start_ms"], bar["ms"]) for bar in point["timeline"]}


def test_work_of_a_step_by_class():
    classes = {
        "forward": "compute",
        "wait for the slowest": "waiting for the slowest rank",
        "rows": "rows and gradients that compute waits for",
        "collision lookup": "rows and gradients that compute waits for",
        "exclusive rows": "rows and gradients in the background",
        "id metadata": "IDs",
        "all-reduce": "dense all-reduce",
        "read": "loader",
        "metrics": "other",
    }
    assert {what: work_class(what)[0] for what in classes} == classes


def test_every_cell_of_the_trade_off_table_is_that_of_its_column():
    found = documents.profile()["tradeoff"]
    (table,) = tradeoff_section(found | {"gpu_hour_price": 1.0}).blocks
    for row, point in zip(table.rows, found["points"], strict=True):
        cells = dict(zip(table.columns, row, strict=True))
        assert cells["Events lost"] == numbers.percent(point["events_lost"])
        assert cells["Memory of the fullest rank"] == numbers.size(point["bytes"])
        assert cells["Steps an epoch"] == numbers.count(point["steps"])


def test_parts_that_are_absent_leave_no_section_and_long_lists_are_cut():
    assert [section.id for section in documents.page(documents.tiny()).sections] == [
        "summary",
        "lengths",
        "lengths-0",
        "assumptions",
        "terms",
    ]
    assert [section.id for section in documents.page(documents.simulate_result()).sections] == [
        "summary",
        "steps",
        "assumptions",
        "terms",
    ]
    lost = [{"file": f"{place}", "row_group": 1, "rows": 5, "reason": "r" * 5000} for place in range(MOST_SKIPPED + 7)]
    found = documents.page(documents.tiny() | {"skipped": lost})
    (table,) = (block for (section, _), block in blocks(found.sections, Table).items() if section == "skipped")
    assert (len(table.rows), table.note) == (MOST_SKIPPED, "7 more are in the JSON document.")
    assert thinned([1, 2, 3]) == [1, 2, 3]
    few = thinned(range(10_000))
    assert (len(few), few[0], few[-1]) == (MOST_POINTS, 0, 9999)


def test_tiles_have_room_for_their_figures():
    document = documents.tiny()
    for events, said in ((999_999_999, "999,999,999"), (6_847_477_148, "6.85 billion")):
        document["sequences"]["a"]["events"] = events
        assert documents.page(document).sections[0].blocks[0].tiles[0].value == said


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
    assert len(render(documents.page(document)).encode()) < 8 * MEGABYTE


def test_a_page_explains_the_terms_that_it_uses_and_no_others():
    def terms(sections):
        (section,) = (section for section in sections if section.id == "terms")
        return {term for term, _ in section.blocks[0].rows}

    found = terms(documents.usual_page().sections)
    assert {"Straggler share", "FBS + swap", "VBS", "Lower bound", "Collision", "Exposed communication"} <= found
    found = terms(documents.page(documents.collisions_result()).sections)
    assert {"Collision", "Exclusive rows"} <= found
    assert not {"VBS", "Lower bound", "SM-free"} & found
    found = terms(documents.page(documents.simulate_result()).sections)
    assert {"SM-free", "Exposed communication", "SparseDist"} <= found
    assert "VBS" not in found
    assert not {"Collision", "Straggler share", "SM-free"} & terms(documents.page(documents.tiny()).sections)


def test_pages_are_small_enough_to_mail_and_the_bundle_draws_what_the_installed_plotly_makes():
    assert len(render(documents.usual_page()).encode()) < 1.5 * MEGABYTE
    bundle = gzip.decompress((Path(page.__file__).parent / "bundle" / "plotly-cartesian.min.js.gz").read_bytes())
    of_bundle = re.search(rb"plotly.js \(cartesian - minified\) v(\d+)\.", bundle[:200])[1].decode()
    assert of_bundle == get_plotlyjs_version().split(".")[0]
    figures = [plot.figure.to_json() for plot in blocks(documents.usual_page().sections).values()]
    assert set(re.findall(r"#[0-9a-f]{6}", "".join(figures))) <= DARK.keys(), "colors that the dark scheme lacks"


def test_figures_inside_the_page_are_json_that_ends_no_script():
    made = documents.page(documents.hostile())
    page = render(made)
    figures = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', page, flags=re.S)
    assert len(figures) == len(blocks(made.sections))
    assert all("data" in json.loads(figure) and "<" not in figure for figure in figures)
    assert documents.HOSTILE not in page
    text = json.dumps({"</script>": ["<!--", "a < b"]})
    assert "<" not in embedded(text)
    assert json.loads(embedded(text)) == json.loads(text)


def test_an_old_page_is_replaced_and_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "page.html").write_text("old")
    write_page(documents.page(documents.tiny()), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match=r"there"):
        write_page(documents.page(documents.tiny()), tmp_path / "there")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "there"]


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
        (numbers.signed(0.5), "+50 %"),
        (numbers.signed(-0.903), "−90 %"),
        (numbers.milliseconds(12.345), "12.3 ms"),
        (numbers.size(17_784_325), "17.8 MB"),
        (numbers.size(999), "999 B"),
        (numbers.many(1, "row"), "1 row"),
        (numbers.many(2000, "row"), "2,000 rows"),
        (numbers.cost("Polynomial(linear=2000, quadratic=1, candidate=0)"), "2,000·L + L²"),
        (numbers.cost("Polynomial(linear=0, quadratic=2, candidate=7)"), "2·L² + 7·candidates"),
        (numbers.cost("Power(alpha=1.5)"), "L^1.5"),
        (numbers.cost("Mine(1)"), "Mine(1)"),
        (numbers.moment("2024-05-01T00:00:00"), "2024-05-01"),
        (numbers.label("<b>%{x}"), "&lt;b&gt;% {x}"),
    ],
)
def test_how_numbers_and_names_are_written(written, expected):
    assert plain(written) == expected
