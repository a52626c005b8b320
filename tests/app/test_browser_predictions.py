"""The page Predictions in a real browser: the confusion matrix by keyboard, and on a narrow screen."""

import re
from collections import Counter

import pytest
from playwright.sync_api import expect

from tests.app.browser import browser_visit, dashboard, still
from tests.app.conftest import CLASSES, write_predictions

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def test_cells_of_the_matrix_open_by_keyboard_and_scroll_to_the_images_on_a_narrow_screen(make_run, tmp_path):
    run = make_run()
    arrays = write_predictions(run)
    predicted = arrays["probabilities"].argmax(1)
    counts = Counter(zip(arrays["labels"].tolist(), predicted.tolist(), strict=True))
    size = {"width": 390, "height": 844}
    with dashboard(tmp_path) as (address, _), browser_visit(viewport=size) as visit:
        page = visit.page
        page.goto(f"{address}/predictions?run=first")
        cell = page.locator('.lk-matrix [data-row="0"][data-column="0"]')
        still(cell)  # a part that is drawn anew loses the focus
        cell.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        focused = page.locator(":focus")
        label = re.compile("^" + re.escape(f"{CLASSES[1]} predicted as {CLASSES[2]}: "))
        expect(focused).to_have_attribute("aria-label", label)
        expect(focused).to_have_css("outline-style", "solid")
        page.keyboard.press("Enter")
        page.get_by_text(f"of {counts[1, 2]}, the most confident mistakes first").wait_for()
        page.locator('.lk-matrix [aria-pressed="true"]').wait_for()  # refused where there are two
        page.wait_for_function("document.querySelector('.lk-tiles').getBoundingClientRect().top < 300")
        page.reload()
        page.get_by_text(f"of {counts[1, 2]}, the most confident mistakes first").wait_for()
        page.wait_for_function("document.documentElement.scrollWidth <= 390")
        visit.went_well()
