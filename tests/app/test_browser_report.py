"""In a real browser: a report opened from its file without a network; downloads and the theme's switch."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.report.write import write_report
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from tests.app.browser import PATIENCE, Visit, browser_visit, dashboard
from tests.app.conftest import train_row, write_predictions

pytestmark = [pytest.mark.slow, pytest.mark.browser]

STEPS = 20_000
INK = """canvas => {  // how many pixels are drawn
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
}"""
SHOWN = "() => { const { x } = document.querySelector('.board').labkitBoard.charts.get('loss').plot.scales;"
SHOWN += " return [x.min, x.max]; }"
BACKGROUND = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"


@pytest.fixture
def offline() -> Iterator[Visit]:
    """A page whose network is off."""
    with browser_visit(offline=True, color_scheme="dark") as seen:
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
    assert canvases.count() >= 4
    assert all(canvases.nth(number).evaluate(INK) > 500 for number in range(4)), "curves are drawn"
    assert page.locator(".lk-card img").first.evaluate("image => image.naturalWidth") == 32
    points = page.locator(".lk-points").first
    assert points.inner_text() == f"{STEPS:,} of {STEPS:,} points", "all of them are in the file"
    assert page.evaluate(SHOWN) == [1, STEPS]
    box = page.locator(".lk-chart .u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    page.mouse.up()
    low, high = page.evaluate(SHOWN)
    assert STEPS * 0.4 < low < high < STEPS * 0.7
    shown = int(points.inner_text().split()[0].replace(",", ""))
    assert shown == pytest.approx(high - low, abs=2)
    page.locator(".lk-chart").nth(1).focus()
    page.keyboard.press("0")
    assert page.evaluate(SHOWN) == [1, STEPS], "the keyboard shows all, in all charts"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.set_viewport_size({"width": 390, "height": 844})
    give_up = time.monotonic() + PATIENCE  # the policy of the file forbids what wait_for_function does
    while page.evaluate("document.documentElement.scrollWidth") > 390:
        assert time.monotonic() < give_up
        page.wait_for_timeout(50)
    assert len(page.pdf(path=tmp_path / "printed.pdf")) > 20_000
    assert page.locator(".paper-chart").count() == 0, "the page is as before"
    assert offline.complaints == []
    assert set(offline.elsewhere) == {path.as_uri()}, "no other file and no host was asked for"


@pytest.fixture
def visit() -> Iterator[Visit]:
    with browser_visit(color_scheme="light") as seen:
        yield seen


def download(page: Any, label: str, folder: Path) -> bytes:
    with page.expect_download() as coming:
        page.get_by_role("button", name=label).click()
    coming.value.save_as(folder / coming.value.suggested_filename)
    return (folder / coming.value.suggested_filename).read_bytes()


def test_files_are_downloaded_and_the_theme_is_kept_on_all_pages(make_run, tmp_path, visit):
    make_run("first")
    page = visit.page
    with dashboard(tmp_path) as (address, _):
        page.goto(f"{address}/live?run=first")
        page.locator(".lk-chart canvas").first.wait_for()
        page.get_by_role("button", name="Share").first.click()
        assert b"<!doctype html>" in download(page, "Report as HTML", tmp_path)
        assert download(page, "Metrics as CSV", tmp_path).count(b"\n") == 122
        assert download(page, "Metrics as Parquet", tmp_path).startswith(b"PAR1")
        light = page.evaluate(BACKGROUND)
        page.get_by_role("radio", name="Dark").check()
        page.wait_for_function(f"light => {BACKGROUND} !== light", arg=light)
        assert "run=first" in page.url
        for place in ("compare", ""):
            page.goto(f"{address}/{place}")
            page.wait_for_function("document.querySelector('.lk-theme input:checked')?.value === 'Dark'")
            assert page.evaluate(BACKGROUND) != light
        page.get_by_role("radio", name="System").check()
        page.wait_for_function(f"light => {BACKGROUND} === light", arg=light)
        visit.went_well()
