"""Every page of the dashboard in a browser while a run trains: readable, within the window, by keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from labkit.run_directory import RunDirectory
from tests.app.browser import IDLE, dashboard, still, until, visiting
from tests.app.conftest import train
from tests.app.test_browser import training
from tests.tiny import prepare_tiny

# The time of the first test includes three trainings.
pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(900)]

LOOKS = 3
LAPTOP, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
RULES = {  # the pages differ in nothing but their colours
    "light": {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}},
}
# Whether the content, and each choice of a few, is as narrow as the window.
FITS = """() => {
    const names = '.stMain, .stMainBlockContainer, .stMain [role="radiogroup"]';
    const parts = [...document.querySelectorAll(names)];
    return parts.length >= 2 && parts.every((part) => part.scrollWidth - part.clientWidth <= 1);
}"""
# Whether the bar with the button that opens the sidebar covers nothing of the page.
UNCOVERED = """() => {
    if (!document.querySelector('[data-testid="stExpandSidebarButton"]')) return false;
    const bar = document.querySelector('[data-testid="stHeader"]').getBoundingClientRect();
    const parts = [...document.querySelectorAll('.stMain :is([data-testid="stHeading"], button)')]
        .map((part) => part.getBoundingClientRect()).filter((place) => place.width);
    return parts.every((place) => place.top >= bar.bottom);
}"""
FOCUS = """() => {
    const at = document.activeElement, shown = [at, at.parentElement, at.closest('[data-rac], label')];
    const marked = shown.filter(Boolean).some((part) => {
        const style = getComputedStyle(part);
        return style.boxShadow !== 'none' || (style.outlineStyle !== 'none' && style.outlineWidth !== '0px')
            || at.matches('iframe, canvas, input') || part.matches('[data-focus-visible]');
    });
    return {marked, what: at.outerHTML.slice(0, 200)};
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard with a finished run, another seed of it, and one that trains."""
    home = tmp_path_factory.mktemp("pages")
    prepare_tiny(home / "data")
    for seed in (1, 2):
        train(home, f"seed-{seed}", inspect_every_steps=2, seed=seed)
    unhurried = ("--callbacks", str(Path(__file__).with_name("unhurried.py")))
    with training(RunDirectory(home / "runs" / "training"), *unhurried), dashboard(home) as (address, _):
        yield address


def faults(page: Any, rules: dict[str, Any]) -> list[str]:
    """Return what axe finds. It looks again: while a part is drawn anew, it is shown faintly."""
    for _ in range(LOOKS):
        page.wait_for_function(IDLE)
        found = Axe().run(page, options=rules).response["violations"]
        if not found:
            return []
    return [
        f"{fault['id']}: {node['html'][:200]} {node['failureSummary']}"
        for fault in found
        for node in fault["nodes"]
    ]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_and_fits_a_laptop_and_a_phone(address, browser, scheme):
    with visiting(browser, viewport=LAPTOP, color_scheme=scheme) as visit:
        page = visit.page
        page.goto(f"{address}/live?run=seed-1")
        assert still(page.locator(".lk-chart").first)["y"] < LAPTOP["height"] / 2, "above the fold"
        links = page.get_by_test_id("stSidebarNavLink")
        until(page, lambda: links.count() >= 7, "all pages are in the sidebar")
        names = [urlsplit(link.get_attribute("href")).path for link in links.all()]
        tops = set()
        for name in names:
            page.set_viewport_size(LAPTOP)
            page.goto(f"{address}{name}?run=seed-1&runs=seed-1&runs=seed-2")
            page.get_by_test_id("stHeading").first.wait_for()
            assert not (found := faults(page, RULES[scheme])), f"{name}: {found}"
            until(page, lambda: page.evaluate(FITS), f"{name} is too wide")
            tops.add(page.locator(".stMain h3").first.bounding_box()["y"])
            if scheme == "dark":
                continue
            page.set_viewport_size(PHONE)
            page.wait_for_function(IDLE)
            page.wait_for_timeout(1000)  # tables and charts follow the window with a delay
            until(page, lambda: page.evaluate(FITS), f"{name} is too wide on a phone")
            until(page, lambda: page.evaluate(UNCOVERED), f"the top of {name} is covered on a phone")
        assert len(tops) == 1, "titles stand at one place"
        visit.went_well()


@pytest.mark.long
def test_the_focus_is_seen_wherever_the_tab_key_goes(address, browser):
    with visiting(browser, viewport=LAPTOP) as visit:
        page = visit.page
        for name in ("", "live", "predictions", "compare"):
            page.goto(f"{address}/{name}?run=seed-1&runs=seed-1&runs=seed-2")
            page.get_by_test_id("stHeading").first.wait_for()
            page.wait_for_function(IDLE)
            for _ in range(25):
                page.keyboard.press("Tab")
                what = page.evaluate(FOCUS)["what"]
                until(page, lambda: page.evaluate(FOCUS)["marked"], f"/{name}: {what}")
        visit.went_well()
