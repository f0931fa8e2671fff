"""The report page in a headless Chromium: all plots drawn, nothing logged, nothing fetched, nothing injected."""

import page_documents as documents
import pytest
from page_browser import CHROMIUM, Browser

from freescale_tools.report.blocks import Plot
from freescale_tools.report.page import page
from freescale_tools.report.plots import DARK, MUTED

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install Debian's package `chromium`")

PAGES = {
    "hostile": documents.hostile,
    "collisions": documents.collisions_result,
    "quick": documents.quick,
    "one file": documents.tiny,
    "no events": documents.no_events,
}
PLOTS = {"collisions": 5, "quick": 1, "one file": 2, "no events": 1}
INK_OF_TICKS = "getComputedStyle(document.querySelector('.drawing .xtick text')).fill"
WIDTHS = "[...document.querySelectorAll('.drawing')].map(d => d.querySelector('.main-svg').getAttribute('width'))"
AS_WIDE_AS_THERE_IS = (
    "[...document.querySelectorAll('.drawing')].every(d => d.querySelector('.main-svg').clientWidth === d.clientWidth)"
)
# What carries data: lines, markers, bars, texts.
MARKS = ".scatterlayer path, .scatterlayer text, .barlayer path"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, document in PAGES.items():
        (folder / f"{name}.html").write_text(page(documents.report(document())))
    return folder


def assert_all_drawn(browser):
    marks = browser.ask(f"[...document.querySelectorAll('.drawing')].map(d => d.querySelectorAll('{MARKS}').length)")
    assert all(marks), f"an empty plot: {marks}"
    assert browser.ask("document.documentElement.dataset.drawn") == str(len(marks))
    assert browser.complaints() == []
    return len(marks)


def ink(browser):
    """The colour of the numbers on the first axis."""
    return browser.ask(INK_OF_TICKS)


def rgb(color):
    return "rgb({}, {}, {})".format(*(int(color[place : place + 2], 16) for place in (1, 3, 5)))


def assert_nothing_fetched_and_as_wide_as_the_window(browser):
    assert [url for url in browser.requested() if not url.startswith(("file:", "data:"))] == []
    assert browser.ask("document.documentElement.scrollWidth") == 1280
    resources = browser.ask("[...document.querySelectorAll('[src], link[href]')].map(e => e.src || e.href)")
    assert [url for url in resources if not url.startswith("data:")] == []


def test_a_profile_draws_without_complaint_or_network_and_its_names_are_no_markup(browser, pages):
    browser.open(pages / "hostile.html")
    sections = documents.report(documents.hostile()).sections
    assert assert_all_drawn(browser) == sum(isinstance(block, Plot) for one in sections for block in one.blocks) > 12
    assert_nothing_fetched_and_as_wide_as_the_window(browser)
    assert browser.ask("window.stolen === undefined")
    assert browser.ask("document.querySelectorAll('main b, header b').length") == 0
    assert browser.ask("document.querySelector('.subtitle').textContent") == documents.HOSTILE
    reason = browser.ask("document.querySelector('#skipped td:nth-child(3)').textContent")
    assert reason == f"bad page: {documents.HOSTILE}"


@pytest.mark.long
@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_draws_without_complaint_or_network(browser, pages, name):
    browser.open(pages / f"{name}.html")
    assert assert_all_drawn(browser) == PLOTS[name]
    assert_nothing_fetched_and_as_wide_as_the_window(browser)


@pytest.mark.long
def test_a_script_that_got_in_does_not_run_and_nothing_may_be_fetched(browser, pages):
    browser.open(pages / "one file.html")
    browser.ask(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.stolen = 1'}))"
    )
    assert browser.ask("window.stolen === undefined")
    assert browser.ask("fetch('https://example.org').then(() => 'reached', () => 'refused')") == "refused"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())
    assert not any(url.startswith("http") for url in browser.requested())


@pytest.mark.long
def test_plots_follow_the_scheme_of_the_reader(browser, pages):
    browser.open(pages / "quick.html", dark=True)
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ink(browser) == rgb(DARK[MUTED])
    browser.scheme(dark=False)
    browser.until(f"{INK_OF_TICKS} === '{rgb(MUTED)}'")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") != background
    assert_all_drawn(browser)


@pytest.mark.long
def test_paper_is_light_and_narrow_and_the_screen_comes_back(browser, pages, tmp_path):
    browser.open(pages / "hostile.html", dark=True)
    before, screen = ink(browser), browser.ask(WIDTHS)
    browser.ask(
        "window.onPaper = null; addEventListener('beforeprint', () => { window.onPaper = "
        f"[{WIDTHS}, {INK_OF_TICKS}] }})"
    )
    browser.ask(
        "window.drawn = []; const react = Plotly.react; "
        "Plotly.react = (place, data, layout, config) => { drawn.push(layout.width); "
        "return react(place, data, layout, config); }"
    )
    browser.printed(tmp_path / "page.pdf")
    browser.until(f"drawn.length >= {2 * len(screen)}")
    widths, color = browser.ask("window.onPaper")
    assert widths == ["640"] * len(screen)
    assert color == rgb(MUTED)
    assert color != before
    assert browser.ask("drawn") == [640] * len(screen) + [int(width) for width in screen]
    assert browser.ask(WIDTHS) == screen
    assert ink(browser) == before
    assert_all_drawn(browser)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_a_narrow_window_shows_everything_and_plots_follow_the_window(browser, pages):
    browser.open(pages / "hostile.html", width=360)
    assert_all_drawn(browser)
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert browser.ask("document.documentElement.scrollWidth") == 360
    assert browser.ask(AS_WIDE_AS_THERE_IS)
    tables = "[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth > box.clientWidth)"
    assert any(browser.ask(tables)), "tables scroll inside their own box"
    browser.call("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
    browser.until(AS_WIDE_AS_THERE_IS)
    assert_all_drawn(browser)


@pytest.mark.long
def test_the_settings_can_be_copied_with_and_without_a_clipboard(browser, pages):
    browser.open(pages / "hostile.html")
    browser.ask("document.addEventListener('copy', () => { window.copied = getSelection().toString() })")
    for clipboard in ("{ writeText: async (text) => { window.copied = text } }", "undefined"):
        browser.ask("document.querySelector('button.copy').textContent = 'Copy'; window.copied = ''")
        browser.ask(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard}, configurable: true }})")
        browser.ask("document.querySelector('button.copy').click()", gesture=True)
        browser.until("document.querySelector('button.copy').textContent === 'Copied'")
        assert browser.ask("window.copied").strip() == documents.profile()["recommended"]["code"].strip()


@pytest.mark.long
def test_a_click_on_a_name_hides_what_it_stands_for(browser, pages):
    browser.open(pages / "collisions.html")
    lines = "document.querySelectorAll('.drawing')[1].querySelectorAll('.scatterlayer .trace').length"
    before = browser.ask(lines)
    browser.ask("document.querySelectorAll('.legend')[1].querySelector('button').click()")
    browser.until(f"{lines} === {before - 1}")
    assert (
        browser.ask("document.querySelectorAll('.legend')[1].querySelector('button').getAttribute('aria-pressed')")
        == "false"
    )
    browser.ask("document.querySelectorAll('.legend')[1].querySelector('button').click()")
    browser.until(f"{lines} === {before}")
