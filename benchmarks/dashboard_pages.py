"""What `dashboard.py` measures on single pages of the dashboard: tables, switches, filters, answers."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.dashboard_runs import make_run, write_metrics, write_predictions
from benchmarks.dashboard_servers import browser, chart_drawn, dashboard, free_port, timed, visit
from benchmarks.processes import train_flags
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory

__all__ = ["cold_browser", "filters", "listing", "switches", "what_if"]

SMALL_ROWS = 1000  # of the runs on which pages are opened
PAUSE_MS = 1000  # between two actions, so that nothing of the last one is still going on
PAGES = ("Configuration", "Compare", "Live", "Runs")
TABLE = "[data-testid=stDataFrame] canvas"
# Whether the page NAME is drawn and the server has nothing more to send for it.
ARRIVED = """() => {
  const text = [...document.querySelectorAll('[data-testid=stMain] h3')].map(e => e.textContent).join('|');
  const idle = document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning';
  const charts = (document.querySelector('.lk-board canvas')?.width ?? 0) > 0;
  const table = document.querySelector('TABLE') !== null;
  const there = {
    'Configuration': text.startsWith('Configuration'), 'Compare': text.startsWith('Compare'),
    'Live': !text.startsWith('Compare') && charts, 'Runs': text.startsWith('Runs') && table,
  };
  return idle && there['NAME'];
}""".replace("TABLE", TABLE)
TILES = """() => [...document.querySelectorAll('.lk-grid img')].map(e => e.alt).join('|')"""
# The loss is there with four digits: the bars alone may stay the same.
ANSWER = """() => {
  const bars = document.querySelector('.lk-before')?.closest('[data-testid=stHtml]')?.innerHTML;
  const captions = [...document.querySelectorAll('[data-testid=stCaptionContainer]')].map(e => e.textContent);
  const loss = captions.find(text => text.startsWith('The line in a bar'));
  return bars && loss && bars + loss;
}"""


def cold_browser(folder: Path, repeats: int) -> list[float]:
    """Return the seconds from asking for a run's page in a browser that has just started to its charts."""
    run = make_run(folder, "small", step=SMALL_ROWS)
    write_metrics(run, SMALL_ROWS)
    taken = []
    with dashboard(folder) as server:
        address = f"{server.address}/live?run={run.name}"
        for repeat in range(-1, repeats):  # the first visit makes the server warm
            with browser() as chromium, visit(chromium) as page:
                seconds = chart_drawn(page, address, SMALL_ROWS)
            if repeat >= 0:
                taken.append(seconds)
    return taken


def listing(folder: Path, repeats: int, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds until a table of ``count`` runs is drawn, by a new server and by the same again.

    The browser has been there before.
    """
    for number in range(count):
        write_metrics(make_run(folder, f"run-{number:04d}", step=20), 20)
    first: list[float] = []
    again: list[float] = []
    words = f"{count:,} run"
    listed = """words => document.querySelector('TABLE') !== null
        && [...document.querySelectorAll('[data-testid=stMain] [data-testid=stCaptionContainer]')]
           .some(e => e.textContent.startsWith(words))""".replace("TABLE", TABLE)
    port = free_port()
    with browser() as chromium, visit(chromium) as page:
        for _ in range(-1, repeats):
            with dashboard(folder, port) as server:
                for taken in (first, again):
                    page.goto("about:blank")
                    started = time.perf_counter()
                    page.goto(server.address, wait_until="commit")
                    page.wait_for_function(listed, arg=words)
                    taken.append(time.perf_counter() - started)
                    page.wait_for_timeout(PAUSE_MS)
                page.goto("about:blank")
    return first[1:], again[1:]


def switches(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Return the seconds from a click on a page's name to the page, for each of four pages."""
    for name in ("one", "two"):
        write_metrics(make_run(folder, name, step=SMALL_ROWS), SMALL_ROWS)
    taken: dict[str, list[float]] = {name: [] for name in PAGES}
    with dashboard(folder) as server, browser() as chromium, visit(chromium) as page:
        chart_drawn(page, f"{server.address}/live?run=one", SMALL_ROWS)
        for repeat in range(-1, repeats):  # the first round loads each page's part of the browser's code
            for name in PAGES:
                page.wait_for_timeout(PAUSE_MS)
                link = page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=False).first
                seconds = timed(page, link.click, ARRIVED.replace("NAME", name), "(before, now) => now")
                if repeat >= 0:
                    taken[name].append(seconds)
    return taken


def filters(folder: Path, repeats: int, images: int) -> list[float]:
    """Return the seconds from a click on a filter of ``images`` predictions to the images; two a repeat."""
    run = make_run(folder, "predicted", step=SMALL_ROWS)
    write_metrics(run, SMALL_ROWS)
    write_predictions(run, images)
    taken = []
    with dashboard(folder) as server, browser() as chromium, visit(chromium) as page:
        page.goto(f"{server.address}/predictions?run={run.name}")
        page.wait_for_selector(".lk-grid img")
        for repeat in range(-1, repeats):
            for name in ("Right", "All"):  # the images that stand first are wrong ones
                page.wait_for_timeout(PAUSE_MS)
                choice = page.get_by_test_id("stMain").get_by_text(name, exact=True).first
                seconds = timed(page, choice.click, TILES)
                if repeat >= 0:
                    taken.append(seconds)
    return taken


def what_if(folder: Path, repeats: int, manifest: Manifest, num_layers: int) -> list[float]:
    """Return the seconds from a step of a slider to the network's answer, with a trained ResNet."""
    run = _trained(folder, manifest, num_layers)
    taken = []
    with dashboard(folder) as server, browser() as chromium, visit(chromium) as page:
        page.goto(f"{server.address}/image?run={run.name}&split=test&index=0")
        page.wait_for_selector(".lk-before")
        slider = page.get_by_role("slider", name="Shift to the right, pixels")
        for repeat in range(-1, repeats):
            page.wait_for_timeout(PAUSE_MS)
            slider.focus()
            seconds = timed(page, lambda: page.keyboard.press("ArrowRight"), ANSWER)
            if repeat >= 0:
                taken.append(seconds)
    return taken


def _trained(folder: Path, manifest: Manifest, num_layers: int) -> RunDirectory:
    """Train for a few steps, so that there is a checkpoint to ask. Raises RuntimeError if that fails."""
    run = RunDirectory(folder / "runs" / "trained")
    run.path.parent.mkdir(parents=True)
    flags: list[Any] = train_flags(manifest, num_layers=num_layers, batch_size=32)
    flags += ["--train-steps", "20", "--checkpoint-every-steps", "20"]
    flags += ["--learning-rate", "0.02", "--batch-norm-decay", "0.9"]  # or all answers are alike
    command = [sys.executable, "-m", "labkit", "train", "--job-dir", str(run.path), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"labkit train failed:\n{done.stderr[-3000:]}")
    return run
