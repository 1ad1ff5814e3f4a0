"""The page in a real browser: it asks for nothing, complains of nothing, and reacts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import steadygrad
from steadygrad.experiments import Observer, select, summary
from steadygrad.experiments.reproduce import run_directory
from steadygrad.report import charts, html, runs
from steadygrad.report.sections import Section
from steadygrad.training import train
from tests.report import browser
from tests.stored import RESULT

PROGRAM = browser.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium, or CHROMIUM=path")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's page, from runs of a few updates."""
    folder = tmp_path_factory.mktemp("demo")
    for recipe in select("demo"):
        settings = recipe.settings("smoke")
        often = replace(settings, train=replace(settings.train, evaluate_every=2))
        train(often, run_directory(recipe, 0, folder), callbacks=[Observer()])
    table = folder / "demo" / "copy" / "table.json"
    table.write_text(json.dumps([summary(recipe, "smoke", [0], folder) for recipe in select("demo")]), "utf-8")
    target = folder / "report.html"
    html.write(html.report_page(runs.find_all([folder]), steadygrad.__version__), target)
    return target


@pytest.fixture
def chromium(page: Path) -> Iterator[browser.Browser]:
    with browser.Browser(str(PROGRAM)) as found:
        found.open(page)
        yield found


def drawn(chromium: browser.Browser, chart: int = 0) -> list[str]:
    """Names of the curves that a chart shows."""
    script = f"[...document.querySelectorAll('[data-chart=chart-{chart}] path.line')].map(n => n.dataset.series)"
    return chromium.js(script)


def tip(chromium: browser.Browser) -> str | None:
    return chromium.js("(n => n.hidden ? null : n.textContent)(document.getElementById('tip'))")


def test_page_makes_no_requests_and_logs_no_errors(chromium, page):
    chromium.until(lambda: drawn(chromium))
    chromium.js("document.querySelectorAll('summary').forEach(n => n.click())")
    assert [url for url in chromium.requests() if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert chromium.errors() == []
    figures = chromium.js("[...document.querySelectorAll('figure')].map(n => n.querySelectorAll('svg, canvas').length)")
    assert len(figures) > 5
    assert min(figures) > 0  # every figure was drawn


def test_browser_helper_reports_errors_and_blocked_requests(chromium):
    chromium.js("console.error('wrong'); setTimeout(() => { throw new Error('thrown'); }, 0)")
    chromium.js("fetch('https://example.com/x').catch(() => 0)")
    chromium.until(lambda: chromium.js("1") and len(chromium.errors()) >= 3)  # the page's own rules forbid the request
    words = " ".join(chromium.errors())
    assert "wrong" in words
    assert "thrown" in words
    assert "Content Security Policy" in words


def test_hover_shows_the_values_of_every_curve(chromium):
    chromium.until(lambda: drawn(chromium))
    x, y = chromium.middle("[data-chart=chart-0] svg")
    assert tip(chromium) is None
    chromium.mouse("mouseMoved", x, y)
    lines = tip(chromium).splitlines()
    assert lines[0].startswith("update ")
    assert [line.split(":")[0] for line in lines[1:]] == ["nnrnn", "lstm", "rnn"]
    assert all(float(line.split(": ")[1]) > 0 for line in lines[1:])
    chromium.mouse("mouseMoved", 1, 1)
    chromium.until(lambda: tip(chromium) is None)


def test_legend_button_toggles_series(chromium):
    chromium.until(lambda: drawn(chromium))
    assert drawn(chromium) == ["nnrnn", "lstm", "rnn"]
    chosen = "[data-chart=chart-0] button[data-series=lstm]"
    chromium.click(chosen)
    assert drawn(chromium) == ["nnrnn", "rnn"]
    assert chromium.js(f"document.querySelector({json.dumps(chosen)}).ariaPressed") == "false"
    x, y = chromium.middle("[data-chart=chart-0] svg")
    chromium.mouse("mouseMoved", x, y)
    assert "lstm" not in tip(chromium)
    chromium.click(chosen)
    assert drawn(chromium) == ["nnrnn", "lstm", "rnn"]


def axis_labels(chromium: browser.Browser) -> list[str]:
    texts = "[data-chart=chart-0] svg > text[text-anchor=middle]"
    return chromium.js(f"[...document.querySelectorAll({json.dumps(texts)})].map(n => n.textContent)")


def test_drag_zooms_and_show_all_button_resets(chromium):
    chromium.until(lambda: drawn(chromium))
    x, y = chromium.middle("[data-chart=chart-0] svg")
    whole = axis_labels(chromium)
    chromium.mouse("mouseMoved", x, y)
    chromium.mouse("mousePressed", x, y, "left")
    chromium.mouse("mouseMoved", x + 200, y, "left")
    chromium.mouse("mouseReleased", x + 200, y, "left")
    assert axis_labels(chromium) != whole
    chromium.click("[data-chart=chart-0] button[aria-label='Show all']")
    assert axis_labels(chromium) == whole


def test_charts_are_usable_by_keyboard(chromium):
    chromium.until(lambda: drawn(chromium))
    chromium.js("document.querySelector('[data-chart=chart-0] svg').focus()")
    chromium.key("ArrowRight")
    first = tip(chromium)
    chromium.key("ArrowRight")
    assert first is not None
    assert tip(chromium) != first
    whole = axis_labels(chromium)
    chromium.key("+")
    assert axis_labels(chromium) != whole
    chromium.key("0")
    assert axis_labels(chromium) == whole
    chromium.key("Escape")
    assert tip(chromium) is None
    chromium.js("document.querySelector('canvas[tabindex]').focus()")
    chromium.key("ArrowRight")
    assert "state at" in tip(chromium)
    reachable = "button, input, summary, a[href], [tabindex='0']"
    assert chromium.js(f"[...document.querySelectorAll({json.dumps(reachable)})].every(n => n.tabIndex >= 0)")


def test_attention_map_marks_kept_states(tmp_path):
    """Above the map of attention, and in words where the mouse is."""
    kept = {"kept": [[0, 2, 3], [1, 3, 4]], "kept_at_end": [1], "reach": 1.0, "share_of_kept": 0.5}
    rows = [[None], [0.0, None], [-0.3, -0.3, None], [-0.6, -0.4, -1.0, None], [None, -0.2, None, -0.5, None]]
    target = tmp_path / "page.html"
    html.write(html.portrait_page("relrnn", {"every": 1, "attention": [{"map": rows, **kept}]}, "1"), target)
    with browser.Browser(str(PROGRAM)) as chromium:
        chromium.open(target)
        marks = "[...document.querySelectorAll('.kept line')].map(n => ['x1', 'y1'].map(a => n.getAttribute(a)))"
        assert chromium.js(marks) == [["0.5", "0.6"], ["1.5", "0"]]  # the second stays until the end
        canvas = "document.querySelector('canvas[tabindex]')"
        colours = f"[...{canvas}.getContext('2d').getImageData(0, 4, 5, 1).data].filter((_, i) => i % 4 === 3)"
        assert chromium.js(colours) == [0, 255, 0, 255, 0]  # what is not looked at stays empty
        chromium.js(f"{canvas}.focus()")  # on the last step, the first state
        chromium.key("ArrowRight")
        assert tip(chromium).splitlines()[1:] == ["step 4, state 1", "attention 0.631, kept"]
        chromium.key("ArrowLeft")
        assert "kept" not in tip(chromium)
        assert chromium.errors() == []


def test_the_eigenvalues_move_with_the_slider(chromium):
    places = "[...document.querySelectorAll('.eigenvalues circle')].map(n => n.getAttribute('cx')).join()"
    chromium.until(lambda: chromium.js(places))
    last = chromium.js(places)
    slider = "document.querySelector('input[type=range]')"
    chromium.js(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
    assert chromium.js(places) != last


def test_theme_button_and_media_queries_switch_colours(chromium):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = chromium.js(paper)
    chromium.click("#theme")
    dark = chromium.js(paper)
    assert light == "rgb(255, 255, 255)"
    assert max(int(part) for part in dark.strip("rgb()").split(", ")) < 60
    chromium.click("#theme")
    assert chromium.js(paper) == light
    chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    chromium.js("delete document.documentElement.dataset.theme")
    assert chromium.js(paper) == dark
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.js(paper) == light


def test_page_fits_phone_width(chromium):
    chromium.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    chromium.until(lambda: chromium.js("innerWidth") == 360)
    chromium.until(lambda: chromium.js("document.documentElement.scrollWidth") <= 360)


# many runs and rows, and charts that fail


def all_drawn(chromium: browser.Browser) -> bool:
    """Whether every line chart has a path."""
    return chromium.js("[...document.querySelectorAll('figure.lines')].every(n => n.querySelector('path.line'))")


def synthetic_runs(folder: Path, count: int, rows: int) -> None:
    """Runs of different hidden sizes, each with a spike in the middle of its loss."""
    for number in range(count):
        path = folder / f"run-{number:03}"
        path.mkdir(parents=True)
        final = {"step": rows, "loss": 0.5, "accuracy": 0.5}
        own = {"layer": {"name": "gru", "hidden_size": number + 1}, "best": final, "final": final}
        (path / "result.json").write_text(json.dumps(RESULT | own))
        losses = ["99.5" if step == rows // 2 else "0.5" for step in range(1, rows + 1)]
        line = '{"step": %d, "split": "valid", "loss": %s, "accuracy": 0.5}\n'
        (path / "metrics.jsonl").write_text("".join(line % pair for pair in enumerate(losses, 1)))


def test_page_of_fifty_runs_with_3000_rows_is_drawn(tmp_path):
    synthetic_runs(tmp_path / "runs", 50, 3000)
    target = tmp_path / "page.html"
    html.write(html.report_page(runs.find_all([tmp_path / "runs"]), "1"), target)
    with browser.Browser(str(PROGRAM)) as chromium:
        chromium.open(target)
        chromium.until(lambda: all_drawn(chromium))
        assert chromium.errors() == []
        assert len(drawn(chromium)) == 50
        assert chromium.js("document.querySelectorAll('figure').length") == 2
        assert "Thinned from up to 3,000 points a curve" in chromium.js(
            "document.querySelector('figcaption').textContent"
        )
        x, y = chromium.middle("[data-chart=chart-0] svg")
        chromium.mouse("mouseMoved", x, y)
        lines = tip(chromium).splitlines()
        assert lines[0].startswith("update 1")
        assert lines[-1] == "and 26 more; the legend hides curves"
        chromium.click("#theme")
        assert chromium.js("document.documentElement.dataset.theme") == "dark"


def test_chart_of_more_points_than_the_stack_holds_is_drawn(tmp_path):
    """Curves are thinned before, so this is about the script alone."""
    x = list(range(300_000))
    chart = {**charts.lines("Long", [], "x", "y"), "series": [charts.curve("one", x, x, 0)]}
    chromium_page = tmp_path / "page.html"
    html.write(html.render("t", [Section("s", charts=[chart])], "1"), chromium_page)
    with browser.Browser(str(PROGRAM)) as chromium:
        chromium.open(chromium_page)
        chromium.until(lambda: all_drawn(chromium))
        assert chromium.errors() == []


def test_failing_chart_shows_reason_and_others_are_drawn(tmp_path):
    wrong = {"kind": "lines", "title": "Wrong", "series": None}
    right = charts.lines("Right", [charts.curve("a", [1, 2], [1.0, 2.0], 0)], "x", "y")
    late = {**right, "title": "Late", "series": [{**right["series"][0], "y": None}]}  # fails when it is drawn
    target = tmp_path / "page.html"
    html.write(html.render("t", [Section("s", charts=[wrong, late, right])], "1"), target)
    with browser.Browser(str(PROGRAM)) as chromium:
        chromium.open(target)
        chromium.until(lambda: drawn(chromium, 2))
        failed = "[...document.querySelectorAll('figure')].map(n => n.querySelector('.failed')?.textContent ?? '')"
        chromium.until(lambda: chromium.js(failed)[1])
        first, second, third = chromium.js(failed)
        assert first.startswith("This chart could not be drawn: ")
        assert second.startswith("This chart could not be drawn: ")
        assert third == ""
        assert chromium.js("document.querySelectorAll('figcaption').length") == 3
        chromium.click("#theme")
        assert chromium.js("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("values", [[1e17, 1e17 + 16], [-1e300, 1e300], [5e-324, 1e-323], [1e300, 1e300]])
def test_extreme_values_do_not_hang_the_page(tmp_path, values):
    kinds = [charts.lines("a", [charts.curve("a", values, values, 0)], "x", "y", log=log) for log in (False, True)]
    target = tmp_path / "page.html"
    html.write(html.render("t", [Section("s", charts=kinds)], "1"), target)
    with browser.Browser(str(PROGRAM)) as chromium:
        chromium.open(target)
        chromium.until(lambda: all_drawn(chromium))
        assert chromium.errors() == []
