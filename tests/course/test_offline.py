"""The site works in a browser from a file, without a network."""

import re

import nbformat
import pytest
from nbformat.v4 import new_output
from playwright.sync_api import Locator, expect, sync_playwright

from course.site.build import build_site
from labkit import figures as plots
from labkit.figures.widgets import slider
from tests.app.browser import CHROMIUM, QUIET
from tests.course.small import first, make_paths

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.alone]


@pytest.fixture
def site(tmp_path, monkeypatch):
    paths = make_paths(tmp_path)
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    slider(lambda value: plots.message(f"step {value}"), [1, 2, 3], "step")
    notebook = first()
    notebook.cells[3].outputs = [new_output("display_data", data={"text/html": shown[1].data})]
    nbformat.write(notebook, paths.executed / "00_first.ipynb")
    build_site(paths)
    return paths.site


def show(frames: Locator, *seen: bool) -> None:
    """Wait until these of the frames are seen and no others."""
    expect(frames).to_have_count(len(seen))
    for number, one in enumerate(seen):
        expect(frames.nth(number)).to_be_visible(visible=one)


def test_sliders_move_and_the_search_finds_words(site):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    asked = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "notebooks" / "00_first.html").as_uri())
        frames = page.locator(".labkit-frames figure")
        show(frames, False, False, False)
        page.locator(".labkit-frames input").fill("2")
        show(frames, False, False, True)
        page.goto((site / "search.html").as_uri() + "?q=documentation")
        first_result = page.locator("#search-results a").first
        expect(first_result).to_have_attribute("href", re.compile("docs/index.html"))
        browser.close()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}, asked
