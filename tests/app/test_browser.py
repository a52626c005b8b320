"""The dashboard in a real browser, started by the documented command while a training runs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from tests.app.browser import (
    BOARD,
    CHECKOUT,
    PATIENCE,
    START_PATIENCE,
    Visit,
    browser_visit,
    dashboard,
    listening,
    process,
    still,
    until,
    wait_for,
)
from tests.app.conftest import write_predictions
from tests.app.test_layers import layer_row

pytestmark = [pytest.mark.slow]


@contextmanager
def training(run: RunDirectory) -> Iterator[subprocess.Popen]:
    """Train or resume ``run`` with the real command, for longer than the test takes. It runs in the block."""
    fields = "--dataset shapes --num-layers 8 --train-batch-size 16 --train-steps 1000000"
    train = [sys.executable, "-m", "labkit", "train", "--job-dir", str(run.path), *fields.split()]
    command = ["nice", "-n", "10", *train]  # it trains without end, beside other tests
    log = run.path.with_suffix(".log")
    with open(log, "ab") as output, process(command, cwd=CHECKOUT, stdout=output, stderr=output) as trainer:
        wait_for(lambda: runs(run) and run.metrics_path.is_file(), trainer, log, START_PATIENCE)
        yield trainer


def runs(run: RunDirectory) -> bool:
    status = run.read_status()
    return status is not None and status.state == "running"


@pytest.mark.parametrize("where", ["checkout", "elsewhere"])
def test_the_server_listens_on_loopback_only_whatever_folder_it_starts_in(tmp_path, where):
    script, cwd = (
        ("app/main.py", CHECKOUT) if where == "checkout" else (str(CHECKOUT / "app/main.py"), tmp_path)
    )
    with dashboard(tmp_path, script, cwd) as (address, pid):
        assert listening(pid, int(address.rpartition(":")[2])) == ["127.0.0.1"]


@pytest.fixture
def visit() -> Iterator[Visit]:
    """A page in a browser."""
    with browser_visit() as seen:
        yield seen


POINTS = f"() => ({BOARD}?.data.charts[0].lines.find((line) => line.name === 'train')?.of) || 0"


def more_points_than(page, count: int) -> int:
    counted = f"count => {{ const now = ({POINTS})(); return now > count && now; }}"
    return page.wait_for_function(counted, arg=count).json_value()


def shown_step(page) -> int:
    text = page.get_by_text(re.compile(r"^Step [\d,]+ of")).inner_text()
    return int(text.split()[1].replace(",", ""))


def badge(page, state: str):
    return page.locator(".stMarkdownBadge", has_text=state)


@pytest.mark.browser
@pytest.mark.timeout(900)  # two trainings start
def test_the_page_follows_a_training_to_its_end_and_after_it_is_resumed(shapes, tmp_path, visit):
    run, page = RunDirectory(tmp_path / "runs" / "watched"), visit.page
    run.path.parent.mkdir()
    with dashboard(tmp_path) as (address, _):
        with training(run) as trainer:
            page.goto(f"{address}/live")
            badge(page, "running").wait_for()
            first = more_points_than(page, 1)
            second = more_points_than(page, first)
            until(page, lambda: shown_step(page) > first, "the step follows the curves")
            expect(page.locator(".lk-board").first.locator(".lk-chart")).to_have_count(4)
            page.get_by_text("Machine", exact=True).wait_for()
            expect(page).to_have_url(re.compile("run=watched"))

            third = more_points_than(page, second + 20)

            trainer.terminate()
            trainer.wait(PATIENCE)
        badge(page, "interrupted").wait_for()
        with training(run):
            badge(page, "running").wait_for()
            more_points_than(page, third)
        visit.went_well()


@pytest.mark.browser
def test_a_click_on_the_confusion_matrix_shows_the_wrong_predictions(make_run, tmp_path, visit):
    run, page = make_run(), visit.page
    arrays = write_predictions(run)
    predicted = arrays["probabilities"].argmax(1)
    true, taken_for = next(
        (int(t), int(p)) for t, p in zip(arrays["labels"], predicted, strict=True) if t != p
    )
    count = int(((arrays["labels"] == true) & (predicted == taken_for)).sum())
    with dashboard(tmp_path) as (address, _):
        page.goto(address)
        page.get_by_test_id("stDataFrame").first.wait_for()
        page.get_by_role("link", name="Predictions").click()
        expect(page.locator(".lk-tile").first).to_have_class("lk-tile wrong")
        image = page.locator(".lk-tile img").first
        expect(image).to_have_css("image-rendering", "pixelated")
        expect(image).to_have_js_property("naturalWidth", 32)
        page.locator(f'.lk-matrix [data-row="{true}"][data-column="{taken_for}"]').click()
        page.get_by_text(f"of {count}, the most confident mistakes first").wait_for()
        expect(page.locator(".lk-tile")).to_have_count(min(count, 24))
        expect(page).to_have_url(re.compile("true="))
        MetricsWriter(run.layers_path).append([layer_row(50), layer_row(100)])
        page.get_by_role("link", name="Layers").click()
        page.locator(".lk-heat canvas").wait_for()
        for name in ("Compare", "Configuration", "Live"):
            page.get_by_role("link", name=name).click()
            page.locator(".stMain").get_by_text(run.name).first.wait_for()
            page.wait_for_url("**run=first**")
        page.goto(f"{address}/runs")  # typed, since the link leads to the root
        page.get_by_test_id("stDataFrame").first.wait_for()
        assert page.get_by_text("Page not found").count() == 0
        visit.went_well()


@pytest.mark.browser
def test_a_refresh_leaves_the_ticks_and_the_order_of_the_table(make_run, tmp_path, visit):
    page = visit.page
    for number in range(5):
        make_run(f"run-{number}", loss=float(number))

    def click(x: float, y: float) -> None:
        table = page.get_by_test_id("stDataFrame").first
        table.locator("canvas").first.wait_for()
        box = still(table)
        page.mouse.click(box["x"] + x, box["y"] + y)

    with dashboard(tmp_path) as (address, _):
        page.goto(address)
        page.get_by_test_id("stDataFrame").first.wait_for()
        click(18, 1.5 * 33)
        selected = page.get_by_text(re.compile("^1 selected: run-"))
        selected.wait_for()
        name = selected.inner_text()
        make_run("later")
        page.get_by_text("6 runs", exact=True).wait_for()
        expect(selected).to_have_text(name)
        page.get_by_role("button", name="Move to trash").click()
        page.get_by_text("5 runs", exact=True).wait_for()
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("6 runs", exact=True).wait_for()
        click(18, 1.5 * 33)
        selected.wait_for()
        click(18, 2.5 * 33)
        page.get_by_text(re.compile("^2 selected: run-")).wait_for()
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url("**/compare?runs=*&runs=*")
        page.locator(".lk-chart canvas").first.wait_for()
        visit.went_well()
