"""What `dashboard.py` measures on single pages of the dashboard: tables, switches, filters, answers."""

import argparse
import time
from pathlib import Path

from benchmarks.dashboard_runs import make_run, write_predictions
from benchmarks.dashboard_servers import (
    behind_a_first,
    chart_drawn,
    dashboard,
    free_port,
    opened,
    seconds,
    timed,
)
from benchmarks.processes import LABKIT, run, train_command
from benchmarks.report import Figure
from labkit.data.manifest import Manifest
from tests.app.searches import trials, write_search

SMALL_ROWS = 1000  # of the runs on which pages are opened
PAUSE_MS = 1000  # between two actions, so that nothing of the last one is still going on
PAGES = ("Configuration", "Compare", "Live", "Runs")
TABLE = ".lk-runs tbody tr"
TABLE_THERE = f"document.querySelector('{TABLE}') !== null"
CAPTION = """[...document.querySelectorAll('[data-testid=stMain] [data-testid=stCaptionContainer]')]
  .some(e => e.textContent.startsWith('WORDS'))"""
# Whether the page NAME is drawn and the server has nothing more to send for it.
ARRIVED = """() => {
  const text = [...document.querySelectorAll('[data-testid=stMain] h3')].map(e => e.textContent).join('|');
  const idle = document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning';
  const charts = (document.querySelector('.lk-board canvas')?.width ?? 0) > 0;
  const table = THERE;
  const there = {
    'Configuration': text.startsWith('Configuration'), 'Compare': text.startsWith('Compare'),
    'Live': !text.startsWith('Compare') && charts, 'Runs': text.startsWith('Runs') && table,
  };
  return idle && there['NAME'];
}""".replace("THERE", TABLE_THERE)
TILES = """() => [...document.querySelectorAll('.lk-grid img')].map(e => e.alt).join('|')"""
# The loss is there with four digits: the bars alone may stay the same.
ANSWER = """() => {
  const bars = document.querySelector('.lk-before')?.closest('[data-testid=stHtml]')?.innerHTML;
  const captions = [...document.querySelectorAll('[data-testid=stCaptionContainer]')].map(e => e.textContent);
  const loss = captions.find(text => text.startsWith('The line in a bar'));
  return bars && loss && bars + loss;
}"""

# Whether each part of an image's page is there: what if, two maps, two rows of images, the history.
ALL_PARTS = """() => {
  const main = document.querySelector('[data-testid=stMain]');
  const maps = main ? [...main.querySelectorAll('.lk-picture img')].map(e => e.alt) : [];
  return maps.some(alt => alt.startsWith('Grad-CAM for'))
    && maps.some(alt => alt.startsWith('Integrated gradients for'))
    && main.querySelectorAll('.lk-grid').length >= 2 && main.querySelector('.lk-before') !== null
    && (main.querySelector('.lk-board canvas')?.width ?? 0) > 0;
}"""


def cold_browser(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure from asking for a run's page in a browser that has just started to its charts."""
    small = make_run(folder, "small", SMALL_ROWS)

    def take() -> float:
        with opened() as page:
            return chart_drawn(page, f"{server.address}/live?run={small.name}", SMALL_ROWS)

    with dashboard(folder) as server:
        taken = behind_a_first(options.repeats, take)
    return [seconds("charts in a browser that has just started", taken, 2.5)]


def listing(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure until a table of many runs is drawn, by a new server and by the same again.

    The browser has been there before.
    """
    for number in range(options.runs):
        make_run(folder, f"run-{number:04d}", 20)
    words = f"{options.runs:,} run"
    listed = CAPTION.replace("WORDS", words)
    return _openings(options.repeats, folder, "", f"() => {TABLE_THERE} && {listed}", f"{words}s listed")


def searching(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure until a search of many trials has its table and its chart, in the same way."""
    write_search(folder / "searches" / "many", trials(options.runs))
    drawn = f"() => {TABLE_THERE} && (document.querySelector('.lk-board canvas')?.width ?? 0) > 0"
    return _openings(options.repeats, folder, "/search", drawn, f"a search of {options.runs:,} trials")


def image(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure until all parts of an image's page are there, by a new server, whose network isn't loaded.

    A ResNet-8 with three kept checkpoints, which compares 9,000 training and 2,000 test images of ``shapes``.
    """
    flags = "--preset smoke --train-steps 60 --checkpoint-every-steps 20 --keep-checkpoints 3"
    data, job = ["--data-dir", str(folder / "data")], ["--job-dir", str(folder / "runs" / "trained")]
    run([LABKIT, "data", "prepare", "--dataset", "shapes", *data], folder / "prepare.log")
    run([LABKIT, "train", *flags.split(), *data, *job], folder / "train.log")
    path = "/image?run=trained&split=test&index=0"
    return _openings(options.repeats, folder, path, ALL_PARTS, "all parts of an image's page", 4.0)


def _openings(
    repeats: int, folder: Path, page_path: str, ready: str, what: str, goal: float = 1.5
) -> list[Figure]:
    """Measure the opening of a page until ``ready``, by a new server and by the same again."""
    first: list[float] = []
    again: list[float] = []
    port = free_port()
    with opened() as page:
        for _ in range(-1, repeats):
            with dashboard(folder, port) as server:
                for taken in (first, again):
                    page.goto("about:blank")
                    started = time.perf_counter()
                    page.goto(server.address + page_path, wait_until="commit")
                    page.wait_for_function(ready)
                    taken.append(time.perf_counter() - started)
                    page.wait_for_timeout(PAUSE_MS)
                page.goto("about:blank")
    return [
        seconds(f"{what} by a new server", first[1:], goal),
        seconds(f"{what} again", again[1:], goal),
    ]


def switches(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure from a click on a page's name to the page, for each of four pages."""
    for name in ("one", "two"):
        make_run(folder, name, SMALL_ROWS)
    taken: dict[str, list[float]] = {name: [] for name in PAGES}
    with dashboard(folder) as server, opened() as page:
        chart_drawn(page, f"{server.address}/live?run=one", SMALL_ROWS)
        for _ in range(-1, options.repeats):  # the first round loads each page's part of the browser's code
            for name in PAGES:
                page.wait_for_timeout(PAUSE_MS)
                link = page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=False).first
                arrived = ARRIVED.replace("NAME", name)
                taken[name].append(timed(page, link.click, arrived, "(before, now) => now"))
    return [seconds(f"a click on {name} to its page", values[1:], 0.7) for name, values in taken.items()]


def filters(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure from a click on a filter of many predictions to the images; two a repeat."""
    predicted = make_run(folder, "predicted", SMALL_ROWS)
    write_predictions(predicted, options.images)
    taken = []
    with dashboard(folder) as server, opened() as page:
        page.goto(f"{server.address}/predictions?run={predicted.name}")
        page.wait_for_selector(".lk-grid img")
        for _ in range(-1, options.repeats):
            for name in ("Right", "All"):  # the images that stand first are wrong ones
                page.wait_for_timeout(PAUSE_MS)
                choice = page.get_by_test_id("stMain").get_by_text(name, exact=True).first
                taken.append(timed(page, choice.click, TILES))
    return [seconds(f"a filter of {options.images:,} predictions to its images", taken[2:], 0.3)]


def what_if(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure from a step of a slider to the answer of a ResNet that was trained for some steps."""
    (folder / "data").symlink_to(manifest.directory.parent)
    command = train_command(
        options,
        manifest,
        job_dir=folder / "runs" / "trained",
        train_batch_size=32,
        train_steps=20,
        checkpoint_every_steps=20,
        learning_rate=0.02,  # with the decay: or all answers are alike
        batch_norm_decay=0.9,
    )
    run([LABKIT, *command], folder / "train.log")
    with dashboard(folder) as server, opened() as page:
        page.goto(f"{server.address}/image?run=trained&split=test&index=0")
        page.wait_for_selector(".lk-before")
        slider = page.get_by_role("slider", name="Shift to the right, pixels")

        def take() -> float:
            page.wait_for_timeout(PAUSE_MS)
            slider.focus()
            return timed(page, lambda: page.keyboard.press("ArrowRight"), ANSWER)

        taken = behind_a_first(options.repeats, take)
    return [seconds("a step of a what-if slider to the network's answer", taken, 0.5)]
