"""The Compare page in a real browser: pictures that the page draws itself, and a way to an image's page."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect

from labkit.run_directory import write_json_atomic
from tests.app.browser import Visit, browser_visit, dashboard
from tests.app.conftest import write_predictions

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def visit() -> Iterator[Visit]:
    with browser_visit() as seen:
        yield seen


def test_from_two_runs_to_the_answer_and_to_an_image_that_one_fixed(make_run, tmp_path, visit):
    for name, turn in (("first", 1), ("second", -1)):
        run = make_run(name, loss=2.0 + turn)
        arrays = write_predictions(run, 200)
        arrays["probabilities"] = arrays["probabilities"][::turn]
        np.savez(run.predictions_path / "test.npz", **arrays)
        environment = run.read_environment()
        environment["data"]["checksum"] = "a" * 64
        write_json_atomic(run.environment_path, environment)
        config = json.loads(run.config_path.read_text())
        config["model"]["num_layers"] += 6 * (turn < 0)
        write_json_atomic(run.config_path, config)
    page = visit.page
    with dashboard(tmp_path) as (address, _):
        page.goto(f"{address}/compare?runs=first&runs=second")
        page.get_by_text("McNemar's exact test").wait_for()
        page.locator(".lk-wide svg circle").first.wait_for()
        expect(page.locator(".lk-narrow svg").first).to_be_hidden()
        page.set_viewport_size({"width": 390, "height": 844})
        page.locator(".lk-narrow svg circle").first.wait_for()
        page.wait_for_function("document.querySelector('.stMain')?.scrollWidth <= 390")
        page.set_viewport_size({"width": 1400, "height": 1000})
        page.get_by_text("fixed by B").first.click()
        link = page.locator(".lk-small .lk-card a").first
        link.wait_for()
        expect(page.locator(".js-plotly-plot")).to_have_count(0)
        page.get_by_text("Parallel coordinates").click()
        page.locator(".js-plotly-plot").first.wait_for()
        link.click()
        page.wait_for_url("**/image?run=second*")
        visit.went_well()
