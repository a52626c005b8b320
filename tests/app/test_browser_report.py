"""In a real browser: a report opened from its file without a network; downloads and the theme's switch."""

import base64
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from app.charts.board import COLORS, Chart, Line, encode
from app.report.document import write_report
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from tests.app.browser import Visit, becomes, until, visiting
from tests.app.conftest import train_row, write_predictions

pytestmark = [pytest.mark.slow, pytest.mark.browser]

STEPS = 20_000
INK = """canvas => {  // how many pixels are drawn
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
}"""
SHOWN = "() => { const { x } = document.querySelector('.board').labkitBoard.charts.get('loss').plot.scales;"
SHOWN += " return [x.min, x.max]; }"
DRAW = """async text => {  // the seconds until the board is drawn, and the ends of its axes
  const parent = document.createElement('div'), start = performance.now();
  document.querySelector('main').replaceChildren(parent);
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  labkitBoard.render(parent, bytes, () => {}, () => {});
  await new Promise((done) => setTimeout(done, 50));
  const scales = [...parent.labkitBoard.charts.values()].map((chart) => chart.plot.scales);
  const ends = scales.flatMap(({ x, y }) => [[x.min, x.max], [y.min, y.max]]);
  return [(performance.now() - start) / 1000, ends];
}"""


@pytest.fixture
def offline(browser: Any) -> Iterator[Visit]:
    """A page whose network is off."""
    with visiting(browser, offline=True, color_scheme="dark") as seen:
        yield seen


def long_run(make_run: Any) -> RunDirectory:
    run = make_run("long")
    run.metrics_path.unlink()
    rows = [train_row(step, loss=2 + math.sin(step / 500)) for step in range(1, STEPS + 1)]
    MetricsWriter(run.metrics_path).append(rows)  # type: ignore[arg-type]
    write_predictions(run)
    return run


def test_a_report_opens_from_its_file_without_a_network_and_its_charts_zoom(make_run, tmp_path, offline):
    path, page = tmp_path / "a report.html", offline.page
    write_report([long_run(make_run)], path)
    page.goto(path.as_uri())
    page.locator("html[data-drawn]").wait_for(state="attached")
    canvases = page.locator(".lk-chart canvas")
    canvases.nth(3).wait_for()
    for number in range(4):
        curve = canvases.nth(number)
        until(page, lambda curve=curve: curve.evaluate(INK) > 500, "curves are drawn")
    expect(page.locator(".lk-card img").first).to_have_js_property("naturalWidth", 32)
    points = page.locator(".lk-points").first
    expect(points, "all of them are in the file").to_have_text(f"{STEPS:,} of {STEPS:,} points")
    assert page.evaluate(SHOWN) == [1, STEPS]
    over = page.locator(".lk-chart .u-over").first
    over.hover()  # waits until it no longer moves
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    page.mouse.up()
    until(page, lambda: page.evaluate(SHOWN) != [1, STEPS], "a drag zooms")
    low, high = page.evaluate(SHOWN)
    assert STEPS * 0.4 < low < high < STEPS * 0.7
    count = pytest.approx(high - low, abs=2)
    becomes(page, lambda: int(points.inner_text().split()[0].replace(",", "")), count)
    page.locator(".lk-chart").nth(1).focus()
    page.keyboard.press("0")
    becomes(page, lambda: page.evaluate(SHOWN), [1, STEPS])  # the keyboard shows all, in all charts
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.emulate_media(color_scheme="light")
    until(page, lambda: page.evaluate(color) != dark, "the report follows the system's theme")
    page.set_viewport_size({"width": 390, "height": 844})
    # The policy of the file forbids what wait_for_function does.
    until(page, lambda: page.evaluate("document.documentElement.scrollWidth") <= 390, "it is too wide")
    assert len(page.pdf(path=tmp_path / "printed.pdf")) > 20_000
    expect(page.locator(".paper-chart"), "the page is as before").to_have_count(0)
    assert offline.complaints == []
    assert set(offline.elsewhere) == {path.as_uri()}, "no other file and no host was asked for"


NAN, INF = math.nan, math.inf
# The horizontal axis, x, and the values of some charts.
EXTREME = {
    "one step": ("step", [5], [[2.3], [0], [NAN], [INF], [1e38], [1e-30], [-3]]),
    "one moment": ("clock", [1.7e9], [[2.3]]),
    "two moments that are next to equal": ("clock", [1.7e9, 1.7e9 + 2e-7], [[2.3, 2.2]]),
    "no time": ("seconds", [0, 0, 0], [[3, 2, 1]]),
    "an unknown place": ("step", [NAN, NAN], [[3, 2]]),
    "next to equal values": ("step", [1, 2], [[1, 1 + 2.3e-16], [1e16, 1e16 + 2], [0, 5e-324]]),
    "small and large values": ("step", [1, 2], [[1e-40, 1e38], [1, 1e-30], [1e-300, 1e300]]),
    "a large distance": ("step", [1, 2], [[-1e308, 1e308], [0, 1]]),
}  # fmt: skip


@pytest.mark.long
def test_no_ends_of_an_axis_stop_the_browser(offline, tmp_path, make_run):
    path, page = tmp_path / "report.html", offline.page
    write_report([make_run("usual", steps=3)], path)
    page.goto(path.as_uri())
    page.locator("html[data-drawn]").wait_for(state="attached")
    for name, logarithmic in product(EXTREME, (False, True)):
        axis, x, values = EXTREME[name]
        lines = [Line("train", np.array(x, float), np.array(y, float), COLORS["train"]) for y in values]
        charts = [Chart(str(n), "", [line], logarithmic=logarithmic) for n, line in enumerate(lines)]
        for window in (None, (x[0], x[0]), (x[0], x[-1])):
            board = base64.b64encode(encode(charts, axis=axis, x_title="x", window=window)).decode()
            seconds, found = page.evaluate(DRAW, board)
            assert offline.complaints == [], (name, logarithmic, window)
            assert seconds < 3, (name, logarithmic, window)
            assert all(low < high for low, high in found), (name, logarithmic, window)


def test_a_run_with_one_row_is_drawn(offline, tmp_path, make_run):
    path, page = tmp_path / "report.html", offline.page
    write_report([make_run("one", steps=1)], path)
    page.goto(path.as_uri())
    page.locator("html[data-drawn]").wait_for(state="attached", timeout=20_000)
    chart = page.locator(".lk-chart canvas").first
    until(page, lambda: chart.evaluate(INK) > 500, "the axes and the point are drawn")
    expect(page.locator(".lk-points").first).to_have_text("2 of 2 points")
    page.locator(".lk-chart").first.focus()
    for key in ("ArrowRight", "+", "-", "0"):
        page.keyboard.press(key)
    expect(page.locator(".lk-tip").first).to_contain_text("step 1")
    assert offline.complaints == []
