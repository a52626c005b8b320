"""Notebooks in JupyterLab, in a real browser: the live panel moves and its buttons work while a cell runs."""

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

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 90  # seconds; the longest that anything may take on a busy machine
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
TOKEN = "of this test"

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.browser]


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """Start JupyterLab on the notebooks of ``folder``; it ends with the block, kernels included."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--allow-root", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.port_retries=0", "--LabApp.news_url=", "--LabApp.check_for_updates_class="
                "jupyterlab.handlers.announcements.NeverCheckForUpdate"]  # fmt: skip
    own = {name: str(folder / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / ".lab"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".w")}
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


def wait_for(ready: Callable[[], object], explain: Callable[[], object] = lambda: "") -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end, f"not ready after {PATIENCE} s: {explain()}"
        time.sleep(0.1)


@contextmanager
def opened(notebook: Path) -> Iterator[Page]:
    """Open a notebook in JupyterLab and run all its cells."""
    with jupyterlab(notebook.parent) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{address}/tree/{notebook.name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", state="attached")
        page.wait_for_selector("text=Python 3 (ipykernel) | Idle", state="attached")
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        try:
            yield page
        except BaseException:
            page.screenshot(path=notebook.with_suffix(".png"))
            raise
        finally:
            browser.close()


def write_notebook(path: Path, *cells: str) -> Path:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    sources = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=sources, metadata=kernel), path)
    return path


def steps_shown(page: Page) -> int:
    found = page.locator(".labkit-step")
    return int(found.first.inner_text()) if found.count() else 0


SETTINGS = {
    "dataset": "shapes", "num_layers": 8, "train_batch_size": 8, "eval_batch_size": 500, "num_gpus": 0,
    "train_steps": 100_000, "validate_every_steps": 0, "checkpoint_every_steps": 20, "learning_rate": 0.05,
}  # fmt: skip


def test_the_monitor_moves_a_button_kills_a_worker_and_stop_works_while_a_cell_waits(tmp_path, shapes):
    run_path = tmp_path / "run"
    notebook = write_notebook(
        tmp_path / "live.ipynb",
        "from labkit.notebook.background import start\nfrom labkit.widgets import RunMonitor\n"
        f"training = start(workers=2, job_dir={str(run_path)!r}, **{SETTINGS!r})",
        "RunMonitor(training)",
        "run = training.wait()\nprint('the cell has ended:', run.state, run.step)",
    )
    with opened(notebook) as page:
        wait_for(lambda: steps_shown(page) > 25, page.locator(".jp-NotebookPanel").inner_text)
        first = steps_shown(page)
        wait_for(lambda: steps_shown(page) > first)
        page.get_by_role("button", name="kill worker 1").click()
        page.wait_for_selector("text=worker:1 was killed by SIGKILL; restart 1 of 3")
        run = labkit.load_run(run_path)
        wait_for(lambda: len(resume_points(run_path)) == 1)
        again = resume_points(run_path)[0]
        wait_for(lambda: steps_shown(page) > again + 5)
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("text=the cell has ended: interrupted")
        page.wait_for_function("document.querySelector('.labkit-state').innerText == 'interrupted'")
        assert page.get_by_role("button", name="Stop").is_disabled()
    step = list(run.metrics()["step"])
    assert step == list(range(1, run.step + 1)), "each step is there once"


def resume_points(run_path: Path) -> list[int]:
    rows = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    return [row["resumed_at_step"] for row in rows if "resumed_at_step" in row]
