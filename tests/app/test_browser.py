"""The dashboard in a real browser, started by the documented command while a training runs."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import sync_playwright

from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from tests.app.conftest import CLASSES, write_predictions
from tests.app.test_layers import layer_row

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60  # seconds; the longest that anything may take on a busy machine
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@contextmanager
def process(command: list[str], **options) -> Iterator[subprocess.Popen]:
    """Run ``command`` within a block. The command and its children end with the block."""
    started = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(PATIENCE)


@contextmanager
def training(run: RunDirectory) -> Iterator[subprocess.Popen]:
    """Train or resume ``run`` with the real command, for longer than the test takes."""
    fields = "--dataset shapes --num-layers 8 --train-batch-size 16 --train-steps 1000000"
    command = [sys.executable, "-m", "labkit", "train", "--job-dir", str(run.path), *fields.split()]
    log = run.path.with_suffix(".log")
    with open(log, "ab") as output, process(command, cwd=CHECKOUT, stdout=output, stderr=output) as trainer:
        wait_for(lambda: run.read_status() is not None and run.metrics_path.is_file(), trainer, log)
        yield trainer


@contextmanager
def dashboard(home: Path, script: str = "app/main.py", cwd: Path = CHECKOUT) -> Iterator[tuple[str, int]]:
    """Start the documented command. Yields the address and the server's process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", script, "--server.headless", "true"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
    environment |= {"LABKIT_HOME": str(home), "LABKIT_RUNS": ""}
    log = home / "dashboard.log"
    with (
        open(log, "wb") as output,
        process(
            [*command, "--server.port", str(port)], cwd=cwd, env=environment, stdout=output, stderr=output
        ) as server,
    ):
        wait_for(lambda: listening(server.pid, port), server, log)
        yield f"http://127.0.0.1:{port}", server.pid


def wait_for(ready: Callable[[], object], started: subprocess.Popen, log: Path | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert started.poll() is None, f"ended early: {log.read_text() if log else started.args}"
        assert time.monotonic() < end, (
            f"not ready after {PATIENCE} s: {log.read_text() if log else started.args}"
        )
        time.sleep(0.05)


def listening(pid: int, port: int) -> list[str]:
    """Return the addresses on which the process or a child of it listens at ``port``."""
    parent = psutil.Process(pid)
    found = [c for one in (parent, *parent.children(True)) for c in one.net_connections("inet")]
    return [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port == port]


@pytest.mark.parametrize("where", ["checkout", "elsewhere"])
def test_the_server_listens_on_loopback_only_whatever_folder_it_starts_in(tmp_path, where):
    script, cwd = (
        ("app/main.py", CHECKOUT) if where == "checkout" else (str(CHECKOUT / "app/main.py"), tmp_path)
    )
    with dashboard(tmp_path, script, cwd) as (address, pid):
        assert listening(pid, int(address.rpartition(":")[2])) == ["127.0.0.1"]


@dataclass
class Visit:
    """A page in the browser, its errors, and its requests to other hosts."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def went_well(self) -> None:
        """Check that there was no error and no request to another host. Call it while the server runs."""
        assert self.page.locator('[data-testid="stException"]').count() == 0
        assert self.complaints == []
        assert self.elsewhere == []


@pytest.fixture
def visit() -> Iterator[Visit]:
    """Return a function that opens a browser and records its errors and requests."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE * 1000)
        seen = Visit(page)
        page.on("console", lambda m: seen.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on(
            "request",
            lambda r: (
                seen.elsewhere.append(r.url) if "//127.0.0.1:" not in r.url and "//" in r.url[:9] else None
            ),
        )
        yield seen
        browser.close()


POINTS = """() => {
    const plot = document.querySelector('.js-plotly-plot');
    const trace = plot && plot._fullData && plot._fullData.find(trace => trace.name === 'train');
    return trace ? trace._length : 0;
}"""
ZOOM = "() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range"


def more_points_than(page, count: int) -> int:
    page.wait_for_function(f"count => ({POINTS})() > count", arg=count)
    return page.evaluate(POINTS)


def zoom_in(page) -> list[float]:
    """Zoom into the first chart by dragging. Returns the range of steps that it then shows."""
    for _ in range(10):  # new points that arrive during a drag end it
        box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.2, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
        page.mouse.up()
        if page.evaluate("() => !document.querySelector('.js-plotly-plot')._fullLayout.xaxis.autorange"):
            return page.evaluate(ZOOM)
    raise AssertionError("the chart can't be zoomed")


def shown_step(page) -> int:
    text = page.get_by_text(re.compile(r"^Step [\d,]+ of")).inner_text()
    return int(text.split()[1].replace(",", ""))


def badge(page, state: str):
    return page.locator(".stMarkdownBadge", has_text=state)


@pytest.mark.browser
def test_the_page_follows_a_training_to_its_end_and_after_it_is_resumed(shapes, tmp_path, visit):
    run, page = RunDirectory(tmp_path / "runs" / "watched"), visit.page
    run.path.parent.mkdir()
    with dashboard(tmp_path) as (address, _):
        with training(run) as trainer:
            page.goto(f"{address}/live")
            badge(page, "running").wait_for()
            first = more_points_than(page, 1)
            chart = page.query_selector(".js-plotly-plot")
            second = more_points_than(page, first)
            assert shown_step(page) > first
            assert page.locator(".js-plotly-plot").count() == 4
            assert "run=watched" in page.url

            zoomed = zoom_in(page)
            third = more_points_than(page, second + 20)
            assert page.evaluate(ZOOM) == zoomed, "new points leave the reader's zoom alone"
            assert chart.evaluate("chart => chart.isConnected"), "the chart is the same, not a new one"

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
        assert page.locator(".lk-card").first.get_attribute("class") == "lk-card wrong"
        image = page.locator(".lk-card img").first
        assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
        assert image.evaluate("image => image.naturalWidth") == 32
        cell = page.locator(".js-plotly-plot .scatterlayer .point").nth(true * len(CLASSES) + taken_for)
        cell.scroll_into_view_if_needed()
        box = cell.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.get_by_text(f"of {count}, the most confident mistakes first").wait_for()
        assert page.locator(".lk-card").count() == min(count, 18)
        assert "true=" in page.url
        MetricsWriter(run.layers_path).append([layer_row(50), layer_row(100)])
        page.get_by_role("link", name="Layers").click()
        page.locator(".js-plotly-plot .heatmaplayer image").first.wait_for()
        for name in ("Compare", "Configuration", "Live"):
            page.get_by_role("link", name=name).click()
            page.locator(".stMain").get_by_text(run.name).first.wait_for()
            page.wait_for_url("**run=first**")
        visit.went_well()
        # A typed address, since the link leads to the root. Streamlit looks for its server below it first.
        page.goto(f"{address}/runs")
        page.get_by_test_id("stDataFrame").first.wait_for()
        assert page.get_by_text("Page not found").count() == 0


@pytest.mark.browser
def test_a_refresh_leaves_the_ticks_and_the_order_of_the_table(make_run, tmp_path, visit):
    page = visit.page
    for number in range(5):
        make_run(f"run-{number}", loss=float(number))

    def click(x: float, y: float) -> None:
        box = page.get_by_test_id("stDataFrame").first.bounding_box()
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
        assert selected.inner_text() == name
        page.get_by_role("button", name="Move to trash").click()
        page.get_by_text("5 runs", exact=True).wait_for()
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("6 runs", exact=True).wait_for()
        click(18, 1.5 * 33)
        click(18, 2.5 * 33)
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url("**/compare?runs=*&runs=*")
        page.locator(".js-plotly-plot").first.wait_for()
        visit.went_well()
