"""Lessons in JupyterLab, in a real browser: all cells run, the panel moves, its buttons work meanwhile."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, sync_playwright

import labkit
from tests.listening import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 90  # seconds; the longest that anything may take on a busy machine
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
TOKEN = "of this test"

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.browser,
]


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """Start JupyterLab on the notebooks of ``folder``; it ends with the block, kernels included."""
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--allow-root", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.port_retries=0", "--LabApp.news_url=", "--LabApp.check_for_updates_class="
                "jupyterlab.handlers.announcements.NeverCheckForUpdate"]  # fmt: skip
    own = {name: str(folder / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / ".lab"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".w")}
    asks_about_news = folder / ".lab/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    asks_about_news.parent.mkdir(parents=True)
    asks_about_news.write_text('{"fetchNews": "false"}')  # its question lies over the notebook
    log = folder / "jupyter.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(CHECKOUT), **own}, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: is_open(port) or server.poll() is not None, log.read_text)
            assert server.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}/lab"
        finally:
            server.send_signal(signal.SIGTERM)  # it ends its kernels
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(PATIENCE)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(
    ready: Callable[[], object], explain: Callable[[], object] = lambda: "", patience: float = PATIENCE
) -> None:
    end = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < end, f"not ready after {patience} s: {explain()}"
        time.sleep(0.1)


@contextmanager
def opened(notebook: Path, *, run_all: bool = True) -> Iterator[Page]:
    """Open a notebook in JupyterLab, and run all its cells unless told otherwise."""
    with jupyterlab(notebook.parent) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{address}/tree/{notebook.name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", state="attached")
        page.wait_for_selector("text=Python 3 (ipykernel) | Idle", state="attached")
        try:
            if run_all:
                page.get_by_role("menuitem", name="Run", exact=True).click()
                page.get_by_text("Run All Cells", exact=True).click()
            yield page
        except BaseException:
            page.screenshot(path=notebook.with_suffix(".png"))
            raise
        finally:
            browser.close()


def copy_of(lesson: str, folder: Path) -> Path:
    """Return a copy of a lesson, with its solutions, so that its exercises pass."""
    return Path(shutil.copy(CHECKOUT / "notebooks" / f"{lesson}.ipynb", folder))


@pytest.fixture(autouse=True)
def lesson_runs(shapes, session_home, monkeypatch) -> Path:
    """The folder with the runs of the lessons. CIFAR-10 can't be downloaded, so they train with shapes."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    return session_home / "runs" / "lessons"


def steps_shown(page: Page) -> int:
    """Return the step of the first panel. Out of sight it has no inner text, only content."""
    found = page.locator(".labkit-step")
    return int(found.first.text_content() or 0) if found.count() else 0


def wait_for_state(page: Page, state: str) -> None:
    page.wait_for_function(f"document.querySelector('.labkit-state')?.textContent == '{state}'")


def wait_for_the_last_cell(page: Page, notebook: Path) -> None:
    """Wait until no cell runs; fail if one has an error or didn't run.

    Not until the kernel is idle: JupyterLab says so also when it has handled a click while a cell runs.
    """
    running = page.locator(".jp-InputPrompt", has_text="[*]")
    wait_for(lambda: not running.count(), lambda: running.count(), patience=5 * PATIENCE)
    page.keyboard.press("Control+s")
    wait_for(lambda: errors(notebook) or is_complete(notebook))
    assert not errors(notebook)


def errors(notebook: Path) -> list[nbformat.NotebookNode]:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [output for output in outputs if output.output_type == "error"]


def is_complete(notebook: Path) -> bool:
    cells = code_cells(notebook)
    return bool(cells) and all(cell.execution_count for cell in cells)


def code_cells(notebook: Path) -> list[nbformat.NotebookNode]:
    """Return the cells as they were saved; none while the file is being written."""
    try:
        cells = nbformat.read(notebook, 4).cells
    except nbformat.reader.NotJSONError:
        return []
    return [cell for cell in cells if cell.cell_type == "code"]


def written(run: labkit.Run, name: str) -> list[int]:
    """Return the values of a field in the lines of ``metrics.jsonl``, evaluations left out."""
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row and row.get("split", "train") == "train"]


STEPS_OF_THE_TOUR = 120


def test_the_tour_goes_on_where_its_stop_button_was_pressed(tmp_path, lesson_runs):
    notebook = copy_of("00_tour", tmp_path)
    with opened(notebook) as page:
        wait_for(lambda: steps_shown(page) > 20, page.locator(".jp-NotebookPanel").text_content)
        first = steps_shown(page)
        wait_for(lambda: steps_shown(page) > first)
        page.get_by_role("button", name="Stop").first.click()
        wait_for_state(page, "interrupted")
        run = labkit.load_run(lesson_runs / "00_tour" / "run")
        stopped_at = len(run.metrics()["step"])
        assert first < stopped_at < STEPS_OF_THE_TOUR
        wait_for_state(page, "running")
        wait_for(lambda: steps_shown(page) > stopped_at)
        wait_for_state(page, "finished")
        wait_for_the_last_cell(page, notebook)
        wait_for(lambda: steps_shown(page) == STEPS_OF_THE_TOUR, lambda: steps_shown(page))
    assert run.state == "finished"
    assert written(run, "resumed_at_step") == [stopped_at], "it was stopped once, and saved"
    assert written(run, "step") == list(range(1, STEPS_OF_THE_TOUR + 1)), "no step was made twice"


STEPS = 90


def test_a_button_kills_a_worker_in_the_lesson_about_clusters(tmp_path, lesson_runs):
    notebook = copy_of("05_cluster", tmp_path)
    # More steps than in the lesson, and a later kill by its cell: time for a slow browser to click.
    patient = {
        "train_steps: int = 36 ": f"train_steps: int = {STEPS} ",
        "train_steps * 3 // 5": "train_steps * 9 // 10",
    }
    text = notebook.read_text()
    for written_so, instead in patient.items():
        assert text.count(written_so) == 1
        text = text.replace(written_so, instead)
    notebook.write_text(text)
    with opened(notebook) as page:
        # After the first checkpoint, and before the cell kills the worker itself.
        wait_for(lambda: steps_shown(page) > 10, page.locator(".jp-NotebookPanel").text_content)
        page.get_by_role("button", name="kill worker 1").click()
        page.wait_for_selector("text=killed worker:1", state="attached")
        wait_for_state(page, "restarting")
        run = labkit.load_run(lesson_runs / "05_cluster" / "killed")
        wait_for(lambda: len(written(run, "resumed_at_step")) == 1)
        resumed_at = written(run, "resumed_at_step")[0]
        wait_for(lambda: steps_shown(page) > resumed_at)
        page.wait_for_selector("text=continued from a checkpoint", state="attached")
        wait_for_state(page, "finished")
        wait_for_the_last_cell(page, notebook)
        wait_for(lambda: steps_shown(page) == STEPS, lambda: steps_shown(page))
    assert list(run.metrics()["step"]) == list(range(1, STEPS + 1)), "each step counts once"
    made = written(run, "step")
    lost_at = len(made) - STEPS + resumed_at
    assert made == [*range(1, lost_at + 1), *range(resumed_at + 1, STEPS + 1)]
    assert resumed_at % 10 == 0, "from a checkpoint"
    assert written(run, "resumed_at_step") == [resumed_at], "the cell killed none besides"


QUESTIONS = (
    "import labkit\nlabkit.watch_parameters()",
    "# Parameters: none.",
    "from course.lessons import begin, outcome, predict, record\nbegin('10_collectives')",
    "predict('10.a', 'How long?', unit='ms')",
    "outcome('10.a', 66)",
    "predict('10.b', 'Which one?', ['tree', 'ring'])",
    "outcome('10.b', 'ring')",
    "record()",
)


def test_predictions_are_given_by_keys_and_a_click_and_the_next_cell_runs_by_keys(tmp_path):
    notebook = tmp_path / "questions.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    cells = [nbformat.v4.new_code_cell(source) for source in QUESTIONS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebook)
    with opened(notebook, run_all=False) as page:
        page.locator(".jp-Cell").first.click()
        page.keyboard.press("Escape")
        for _ in range(4):
            page.keyboard.press("Shift+Enter")
        page.get_by_placeholder("a number, then Enter").click()
        page.keyboard.type("55")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Kept: 55 ms. Now run the next cell.")
        page.wait_for_selector("button:focus")
        for _ in range(3):  # a click into a cell's output chose this cell, so it is run again
            page.keyboard.press("Shift+Enter")
        page.wait_for_selector("text=You predicted 55 ms; it was 66 ms: 0.833 × the result.")
        page.get_by_label("ring").click()
        page.wait_for_selector("text=Kept: ring.")
        for _ in range(3):
            page.keyboard.press("Shift+Enter")
        page.wait_for_selector("text=You predicted ring; it was ring: right.")
        page.wait_for_selector("text=You predicted 2 of 2.")
