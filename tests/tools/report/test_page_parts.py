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
from freescale_tools.profile.page.straggler_figures import stragglers
from freescale_tools.report import numbers, page
from freescale_tools.report.assemble import MOST_SKIPPED
from freescale_tools.report.blocks import Plot, Table
from freescale_tools.report.page import embedded, render, write_page
from freescale_tools.report.theme import DARK
from freescale_tools.simulate.page import step_figures as step_figures

MEGABYTE = 1e6


def plots(document):
    """By section and title."""
    return {
        (section.id, block.title): block
        for section in documents.page(document).sections
        for block in section.blocks
        if isinstance(block, Plot)
    }


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
    drawn = distribution(documents.sequence(rows, files=1), max_length=None)
    for trace, of in zip(drawn.data, (np.ones(8), rows), strict=True):
        for length, share in zip(trace.x, trace.y, strict=True):
            assert share == pytest.approx(100 * of[rows <= length].sum() / of.sum(), rel=1e-3)


def test_sentences_tell_the_figures_of_the_data():
    found = plots(documents.profile())
    sequence = documents.profile()["sequences"]["item_ids"]
    aid = found["lengths-0", "Share of rows and of events (%) by length (events)"].aid
    assert f"at most {sequence['quantiles']['p50']:,} events" in aid
    assert "the longest has 21,000" in aid
    assert f"{sequence['empty']:,} empty ones are not drawn" in aid
    aid = found["stragglers", "Straggler share (%) by longest history kept (events)"].aid.replace("\u00a0", " ")
    assert "At 21,000 events, ranks without balancing idle 22.0 % of the time" in aid
    assert "FBS + swap leaves 0.040 %" in aid
    aid = found["stragglers", "Straggler share (%) by what the plan believes"].aid.replace("\u00a0", " ")
    assert "planned by L², FBS + swap leaves 0.28 % instead of 0.040 %" in aid
    aid = found["steps", "QPS gain (%) by ranks"].aid.replace("\u00a0", " ")
    gain = documents.simulation()["gain"]
    assert f"+{100 * gain[-1]['qps_gain']:.0f} % at 1,024" in aid


def test_tiles_have_room_for_their_figures():
    document = documents.profile()
    values = {}
    for events in (999_999_999, 6_847_477_148):
        document["sequences"]["item_ids"]["events"] = events
        (summary,) = (one for one in documents.page(document).sections if one.id == "summary")
        values[events] = summary.blocks[0].tiles[0].value
    assert values == {999_999_999: "999,999,999", 6_847_477_148: "6.85 billion"}


def test_maps_of_one_quantity_share_their_colours():
    grid = documents.grid()
    maps = [
        block.figure.data[0]
        for (section, title), block in plots(documents.profile()).items()
        if section == "stragglers" and "by ranks and longest history" in title
    ]
    assert len(maps) == 2
    (low,), (high,) = ({getattr(one, end) for one in maps} for end in ("zmin", "zmax"))
    shares = [
        np.log10(max(100 * point["straggler"][method], 0.001))
        for point in grid["points"]
        if point["axis"] == "two-way"
        for method in ("none", "fbs+swap")
    ]
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
    assert numbers.percent_within(share, error).replace("\u00a0", " ") == said


def test_maps_tables_and_sentences_know_the_error():
    document = documents.profile()
    for point in document["stragglers"]["points"]:
        point["straggler_error"] = dict.fromkeys(point["straggler"], 0.014)
    found = plots(document)
    aid = found["stragglers", "Straggler share (%) by longest history kept (events)"].aid.replace("\u00a0", " ")
    assert "ranks without balancing idle 22 % of the time" in aid
    (cells,) = (
        block.figure.data[0].text for (_, title), block in found.items() if "without balancing, by ranks" in title
    )
    assert not any("." in cell for row in cells for cell in row)
    tables = {
        block.title: block for section in documents.page(document).sections for block in section.blocks
        if isinstance(block, Table)
    }  # fmt: skip
    (table,) = (one for title, one in tables.items() if title.endswith("simulated points"))
    assert all("." not in row[-1] for row in table.rows if row[0] != "wrong model")


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0.0, 0.0), "is 0 at every point: no sample costs more than a mean rank."),
        ((0.0, 0.385), "mean rank; it is 38.5\u00a0% at most, with 64 ranks of 16 samples and histories of at most"),
        ((0.02, 0.385), "costs more than a mean rank: 2.00\u00a0% at these settings, 38.5\u00a0% at most."),
    ],
)
def test_the_introduction_tells_the_bound_of_the_data(bounds, said):
    document = documents.profile()
    default = document["stragglers"]["default"]
    for point in document["stragglers"]["points"]:
        point["lower_bound"] = 0.0
        if all(point[key] == default[key] for key in default):
            point["lower_bound"] = bounds[0]
        if point["axis"] == "batch_size" and point["batch_size"] == 16:
            point["lower_bound"] = bounds[1]
    (section,) = [section for section in documents.page(document).sections if section.id == "stragglers"]
    assert said in section.intro


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
def test_axes_of_time_say_their_unit(first, step, shown, unit):
    document = documents.profile()
    drift = document["sequences"]["item_ids"]["drift"]
    for place, span in enumerate(drift):
        span["from"] = first if step is None else first + place * step
    block = plots(document)["lengths-0", "Length over time (events)"]
    assert block.figure.data[0].x[0] == shown
    assert block.figure.layout.xaxis.title.text == f"time of the rows ({unit})"
    assert block.figure.layout.xaxis.tickformat == (",d" if shown == 7 else None), "thousands, not 1.75B"
    assert f"({numbers.moment(shown)})" in block.aid


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
def test_the_table_over_time_has_dates(per_second):
    document = documents.profile()
    for place, span in enumerate(document["sequences"]["item_ids"]["drift"]):
        span["from"], span["to"] = ((1_750_000_000 + 3600 * hour) * per_second for hour in (place, place + 1))
    (table,) = (
        block
        for section in documents.page(document).sections
        for block in section.blocks
        if getattr(block, "title", "").startswith("Lengths over time (UTC, from")
    )
    assert table.rows[0][:2] == ("2025-06-15 15:06:40", "2025-06-15 16:06:40")


def tiles(document):
    return {tile.name: tile for section in documents.page(document).sections[:1] for tile in section.blocks[0].tiles}


def test_the_gain_is_that_of_the_verdict_over_torchrecs_pipeline():
    for document in (documents.profile(), documents.simulate_result()):
        points = {(point["ranks"], point["way"]): point for point in document["simulation"]["points"]}
        found = tiles(document)
        assert not any("1,024" in name for name in found)
        gain = document["simulation"]["verdict"]["gains"]["all"]["value"]
        assert found["QPS gain at 128 ranks"].value == numbers.signed(gain)
        assert found["QPS gain at 128 ranks"].note.startswith("+40")
        assert "over TrainPipelineSparseDist" in found["QPS gain at 128 ranks"].note
    step = numbers.milliseconds(points[128, "sparse dist"]["step_ms"])
    assert found["Step at 128 ranks"].note == f"instead of {step} with TrainPipelineSparseDist"
    traces = plots(document)["steps", "QPS gain (%) by ranks"].figure.data
    assert {trace.name: (trace.x[0], trace.x[-1]) for trace in traces} == {
        "more ranks than the rows are enough for": (128, 1024),
        "enough rows": (8, 128),
    }
    assert ("steps", "One step before: TrainPipelineSparseDist (ms by lane), 64 ranks") in plots(document)


def test_rows_that_carry_no_simulated_number_of_ranks_give_no_gain():
    document = documents.profile() | {"simulation": documents.simulation(carried=None)}
    found = tiles(document)["QPS gain"]
    assert (found.value, found.note[:46]) == ("not known", "The 83,000 rows are too few for 8 ranks of 128")
    assert len(plots(document)["steps", "QPS gain (%) by ranks"].figure.data) == 1


def test_every_method_and_the_bound_are_drawn_over_every_axis():
    grid = documents.grid()
    for axis, places in (("max_length", 7), ("ranks", 8), ("batch_size", 6)):
        drawn = stragglers(grid, axis, sparsity=False)
        assert [trace.name for trace in drawn.data][-1] == "lower bound"
        assert len(drawn.data) == len(grid["methods"]) + 1
        assert all(len(trace.x) == len(trace.y) == places for trace in drawn.data)
    none = stragglers(grid, "max_length", sparsity=False).data[0]
    assert none.y[-1] == pytest.approx(22.0)


def test_shares_of_nothing_have_a_place_on_the_log_axis():
    bound = stragglers(documents.grid(), "max_length", sparsity=False).data[-1]
    assert set(bound.y) == {0.001}
    assert set(bound.text) == {"0\u00a0%"}


@pytest.mark.parametrize("way", ["plain", "all"])
def test_a_timeline_draws_every_bar_on_its_lane(way):
    point = documents.step(64, way)
    drawn = step_figures.timeline(point, until_ms=point["step_ms"])
    bars = {
        (lane, start, ms) for trace in drawn.data for lane, start, ms in zip(trace.y, trace.base, trace.x, strict=True)
    }
    assert bars == {(bar["lane"], bar["start_ms"], bar["ms"]) for bar in point["timeline"]}


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("forward", "compute"),
        ("wait for the slowest", "waiting for the slowest rank"),
        ("rows", "rows and gradients that compute waits for"),
        ("collision lookup", "rows and gradients that compute waits for"),
        ("exclusive rows", "rows and gradients in the background"),
        ("id metadata", "IDs"),
        ("all-reduce", "dense all-reduce"),
        ("read", "loader"),
        ("metrics", "other"),
    ],
)
def test_work_of_a_step_by_class(what, expected):
    assert step_figures.work_class(what)[0] == expected


def test_parts_that_are_absent_leave_no_section():
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
    assert "skipped" in [section.id for section in documents.page(documents.hostile()).sections]


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
    skipped = next(section for section in documents.page(document).sections if section.id == "skipped")
    table = next(block for block in skipped.blocks if isinstance(block, Table))
    assert len(table.rows) == MOST_SKIPPED
    assert "9,800 more" in table.note


def terms(document):
    (section,) = [section for section in documents.page(document).sections if section.id == "terms"]
    return {term for term, _ in section.blocks[0].rows}


def test_a_page_explains_the_terms_that_it_uses_and_no_others():
    found = {
        name: terms(getattr(documents, name)()) for name in ("profile", "collisions_result", "simulate_result", "tiny")
    }
    assert {"Straggler share", "FBS + swap", "VBS", "Lower bound", "Collision", "Exposed communication"} <= found[
        "profile"
    ]
    assert {"Collision", "Exclusive rows"} <= found["collisions_result"]
    assert not {"VBS", "Lower bound", "SM-free"} & found["collisions_result"]
    assert {"SM-free", "Exposed communication", "SparseDist"} <= found["simulate_result"]
    assert "VBS" not in found["simulate_result"]
    assert not {"Collision", "Straggler share", "SM-free"} & found["tiny"]


def test_pages_are_small_enough_to_mail():
    for document in (documents.profile(), documents.collisions_result(), documents.simulate_result()):
        assert len(render(documents.page(document)).encode()) < 1.5 * MEGABYTE


def test_the_bundle_draws_figures_of_the_plotly_that_is_installed():
    bundle = gzip.decompress((Path(page.__file__).parent / "bundle" / "plotly-cartesian.min.js.gz").read_bytes())
    of_bundle = re.search(rb"plotly.js \(cartesian - minified\) v(\d+)\.", bundle[:200])[1].decode()
    assert of_bundle == get_plotlyjs_version().split(".")[0]


def test_thinned_lists_keep_both_ends():
    assert thinned([1, 2, 3]) == [1, 2, 3]
    few = thinned(range(10_000))
    assert (len(few), few[0], few[-1]) == (MOST_POINTS, 0, 9999)


def test_the_dark_scheme_has_every_color_that_figures_use():
    used = {
        color
        for document in (documents.profile(), documents.simulate_result())
        for plot in plots(document).values()
        for color in re.findall(r"#[0-9a-f]{6}", plot.figure.to_json())
    }
    assert used <= DARK.keys()


def test_figures_inside_the_page_are_json_that_ends_no_script():
    page = render(documents.page(documents.hostile()))
    figures = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', page, flags=re.S)
    assert len(figures) == len(plots(documents.hostile()))
    assert all("data" in json.loads(figure) and "<" not in figure for figure in figures)
    assert documents.HOSTILE not in page
    text = json.dumps({"</script>": ["<!--", "a < b"]})
    assert "<" not in embedded(text)
    assert json.loads(embedded(text)) == json.loads(text)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"page\.html"):
        write_page(documents.page(documents.tiny()), tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_an_old_page_is_replaced(tmp_path):
    (tmp_path / "page.html").write_text("old")
    write_page(documents.page(documents.tiny()), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


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
    assert written.replace("\u00a0", " ") == expected
