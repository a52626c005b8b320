"""A run that a person starts, stops and resumes in a browser, and that outlives the dashboard's server."""

import os
import re
import signal
import time

import psutil
import pytest

from app.acting.buttons import ENDED_EARLY
from labkit.run_directory import RunDirectory
from labkit.run_directory.stop import training_process
from tests.app.browser import PATIENCE, START_PATIENCE, browser_visit, dashboard

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def badge(page, state: str):
    return page.locator(".stMarkdownBadge", has_text=state)


def type_into(page, label: str, text: str) -> None:
    box = page.get_by_role("textbox", name=label, exact=True)
    box.fill(text)
    box.press("Enter")


def step_of(run: RunDirectory) -> int:
    status = run.read_status()
    return status.step if status else 0


def wait_until(true) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def run(shapes, tmp_path):
    """The run that the test starts; ends its process."""
    (tmp_path / "data").symlink_to(shapes.directory.parent)
    started = RunDirectory(tmp_path / "runs" / "mine")
    yield started
    process = training_process(started) if started.path.is_dir() else None
    if process is not None:
        psutil.Process(process).kill()


@pytest.mark.long
@pytest.mark.timeout(900)  # two trainings start
def test_a_run_is_started_watched_stopped_and_resumed_and_outlives_the_server(run, tmp_path):
    with browser_visit() as visit:
        page = visit.page
        with dashboard(tmp_path) as (address, server):
            page.goto(f"{address}/start")
            type_into(page, "Train steps", "1000000")
            page.get_by_text("--train-steps 1000000").wait_for()
            type_into(page, "Name", "mine")
            page.get_by_text(str(run.path)).wait_for()
            page.get_by_role("button", name="Start", exact=True).dblclick()
            page.wait_for_url("**/live?run=mine")
            badge(page, "running").wait_for(timeout=START_PATIENCE * 1000)
            first = training_process(run)

            page.get_by_role("button", name="Stop").click()
            page.get_by_role("button", name="Save and stop").click()
            badge(page, "interrupted").wait_for()
            page.get_by_text(re.compile("The last checkpoint is of step")).wait_for()
            stopped = step_of(run)
            assert run.checkpoint_steps()[-1] == stopped

            page.get_by_role("button", name="Resume").click()
            badge(page, "running").wait_for(timeout=START_PATIENCE * 1000)
            visit.went_well()
            os.killpg(server, signal.SIGKILL)
        wait_until(lambda: step_of(run) > stopped)
        later = step_of(run)
        wait_until(lambda: step_of(run) > later)
        assert training_process(run) not in (None, first)
        assert run.read_status().liveness() not in ENDED_EARLY
