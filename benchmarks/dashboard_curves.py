"""What `dashboard.py` measures on curves: long runs, runs that are followed, and the cost of following."""

import argparse
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import take_turns
from benchmarks.dashboard_runs import ROWS_PER_SECOND, EventStream, followed, make_run, row
from benchmarks.dashboard_servers import (
    SECONDS_TO_WAIT,
    chart_drawn,
    dashboard,
    free_port,
    opened,
    seconds,
    tensorboard,
)
from benchmarks.processes import Training, train_command
from benchmarks.report import Figure, Goal, ratios
from labkit.data.manifest import Manifest

SESSIONS = 5
SECONDS_OF_FEW = 1.7  # between rows, which are then at any time of the page's second
TENSORBOARD_RELOAD_SECONDS = 30  # of the page: the shortest that its settings accept
# Notes, frame by frame, when the charts first showed each step.
NOTE_STEPS = """() => {
  window.benchSteps = [];
  let last = -1;
  const look = () => {
    const board = document.querySelector('.lk-board')?.parentElement.labkitBoard;
    const step = board?.data?.extent?.[1] ?? -1;
    if (step > last) { last = step; window.benchSteps.push([step, Date.now() / 1000]); }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""
# TensorBoard draws in a canvas of a thread of its own, so what can be seen of a curve is that its points have
# arrived; the second frame after that counts as drawn.
NOTE_SERIES = """() => {
  const settings = {autoReload: true, autoReloadPeriodInMs: RELOAD};
  localStorage.setItem('_tb_global_settings', JSON.stringify(settings));
  window.benchStep = -1;
  const open = XMLHttpRequest.prototype.open;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    if (String(url).includes('timeSeries')) this.addEventListener('load', () => {
      const runs = JSON.parse(this.responseText).flatMap((one) => Object.values(one.runToSeries ?? {}));
      const step = Math.max(-1, ...runs.flat().map((point) => point.step));
      requestAnimationFrame(() => requestAnimationFrame(() => {
        if (step > window.benchStep) { window.benchStep = step; window.benchMoment = Date.now() / 1000; }
      }));
    });
    return open.call(this, method, url, ...rest);
  };
}""".replace("RELOAD", str(TENSORBOARD_RELOAD_SECONDS * 1000))
SHOWN = "n => window.benchStep >= n && document.querySelector('line-chart canvas') !== null"
SECONDS_FOR_TABS = 5.0  # TensorBoard's page asks once which runs there are; then a person reloads it


def long_run(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure opening a long run with a new server, opening it again, and zooming into it.

    The browser has been there before. What it takes to load the code of the page is measured by itself.
    """
    run = make_run(folder, "long", options.rows)
    taken: dict[str, list[float]] = {"first": [], "again": [], "zoom": []}
    port = free_port()
    with opened() as page:
        for _ in range(-1, options.repeats):
            with dashboard(folder, port) as server:
                for name in ("first", "again"):
                    page.goto("about:blank")
                    address = f"{server.address}/live?run={run.name}"
                    taken[name].append(chart_drawn(page, address, options.rows))
                    page.wait_for_timeout(1000)
                taken["zoom"].append(_zoom(page))
                page.goto("about:blank")
    what = f"a run of {options.rows:,} rows"
    return [
        seconds(f"{what}, opened by a new server", taken["first"][1:], 2.0),
        seconds(f"{what}, opened again", taken["again"][1:], 1.0),
        seconds(f"{what}, zoomed", taken["zoom"][1:], 0.3),
    ]


def _zoom(page: Any) -> float:
    """Drag over a sixth of the first chart; return the seconds until it is drawn with the points of that."""
    box = page.locator(".u-over").first.bounding_box()
    height = box["y"] + box["height"] / 2
    page.evaluate("""() => {
      const board = document.querySelector('.lk-board').parentElement.labkitBoard;
      const before = JSON.stringify(board.data.window ?? null);
      window.benchTook = null;
      document.addEventListener('mouseup', () => {
        const began = performance.now();
        const look = () => {
          if (JSON.stringify(board.data.window ?? null) !== before)
            window.benchTook = performance.now() - began;
          else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
      }, {capture: true, once: true});
    }""")
    page.mouse.move(box["x"] + box["width"] * 0.4, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.55, height, steps=3)
    page.mouse.up()
    page.wait_for_function("() => window.benchTook !== null")
    return float(page.evaluate("() => window.benchTook")) / 1e3


def long_run_in_tensorboard(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure until a TensorBoard that has just started shows the last step of the same scalars.

    The browser has been there before. Where a page has not all of it after five seconds, it is reloaded, as
    a person would do.
    Raises playwright's TimeoutError after ``SECONDS_TO_WAIT``.
    """
    with closing(EventStream(folder / "events" / "long")) as stream:
        for step in range(1, options.rows + 1):
            stream.write(row(step))
    taken = []
    port = free_port()
    with opened() as page:
        page.add_init_script(f"({NOTE_SERIES})()")
        for _ in range(-1, min(options.repeats, 3)):
            with tensorboard(folder / "events", folder / "tensorboard.log", port) as server:
                taken.append(_opened(page, server.address, options.rows))
            page.goto("about:blank")
    return [seconds(f"TensorBoard: {options.rows:,} rows (1,000 points of each curve), opened", taken[1:])]


def _opened(page: Any, address: str, step: int) -> float:
    """Return the seconds until TensorBoard's page has drawn a curve up to ``step``."""
    from playwright.sync_api import TimeoutError as TooLate

    started = time.perf_counter()
    while True:
        page.goto(address, wait_until="commit")
        try:
            page.wait_for_function(SHOWN, arg=step, timeout=SECONDS_FOR_TABS * 1e3)
            return time.perf_counter() - started
        except TooLate:
            if time.perf_counter() - started > SECONDS_TO_WAIT:
                raise


def follow(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Follow a run of ten rows a second, one of a row every 1.7 seconds, and the head of another page."""
    median, worst, cpu = _late(options, folder / "many", 1 / ROWS_PER_SECOND)
    rare, rare_worst, _ = _late(options, folder / "few", SECONDS_OF_FEW)
    few = f"a row written every {SECONDS_OF_FEW} s to its place on the screen"
    return [
        seconds("a row written to its place on the screen, median", median, 0.3),
        seconds("a row written to its place on the screen, worst", worst, 1.0),
        seconds(f"{few}, median", rare, 0.3),
        seconds(f"{few}, worst", rare_worst, 1.0),
        Figure("server's CPU with one followed run, of a core", "%", cpu, Goal("at most", 3.0)),
        _cpu_of_a_head(options, folder / "head"),
    ]


def _cpu_of_a_head(options: argparse.Namespace, folder: Path) -> Figure:
    """Return the server's CPU while a page is open of which nothing but the head follows a run."""
    run, cpu = make_run(folder, "followed", state="running"), []
    with dashboard(folder) as server, followed(run), opened() as page:
        page.goto(f"{server.address}/configuration?run={run.name}")
        page.locator(".lk-live").wait_for()
        page.wait_for_timeout(10_000)  # a new server imports what other pages need
        for _ in range(options.repeats):
            began, used = time.perf_counter(), server.cpu_seconds()
            page.wait_for_timeout(options.seconds * 1e3)
            cpu.append(100 * (server.cpu_seconds() - used) / (time.perf_counter() - began))
    return Figure("server's CPU with another page of a run that trains", "%", cpu, Goal("at most", 3.0))


def _late(
    options: argparse.Namespace, folder: Path, every: float
) -> tuple[list[float], list[float], list[float]]:
    """Return how late rows are on the screen, the median and the worst of each repeat, and the server's CPU.

    ``every``: seconds between two rows.
    """
    run = make_run(folder, "followed", state="running")
    median, worst, cpu = [], [], []
    with dashboard(folder) as server, followed(run, every) as written, opened() as page:
        chart_drawn(page, f"{server.address}/live?run={run.name}", 100)
        page.wait_for_timeout(3000)
        page.evaluate(NOTE_STEPS)
        for _ in range(options.repeats):
            began, moment, used = time.perf_counter(), time.time(), server.cpu_seconds()
            page.wait_for_timeout(options.seconds * 1e3)
            cpu.append(100 * (server.cpu_seconds() - used) / (time.perf_counter() - began))
            until = time.time()
            last = max(step for step, when in written.items() if when < until)
            page.wait_for_function("n => (window.benchSteps.at(-1)?.[0] ?? -1) >= n", arg=last)
            late = delays(written, page.evaluate("() => window.benchSteps"), moment, until)
            median.append(statistics.median(late))
            worst.append(max(late))
    return median, worst, cpu


def delays(
    written: dict[int, float], shown: list[tuple[int, float]], begin: float, end: float
) -> list[float]:
    """Return for each row written from ``begin`` to ``end`` the seconds until it was on the screen.

    Args:
        written: moment by step.
        shown: largest step on the screen and moment, both increasing.
        begin, end: seconds since the epoch, as all moments.
    """
    late = []
    places = iter(shown)
    place = next(places)
    for step, moment in sorted(written.items()):
        if begin <= moment < end:
            while place[0] < step:
                place = next(places)
            late.append(place[1] - moment)
    return late


def follow_in_tensorboard(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure from an event in the file to its place in TensorBoard's chart.

    The server looks for new events every second and the page asks for them every 30 s. Events are written at
    times spread over that interval.
    """
    taken, repeats = [], min(options.repeats, 3)
    with closing(EventStream(folder / "events" / "followed")) as stream:

        def write(step: int) -> float:
            stream.write(row(step, time.time()), ["loss"])
            return stream.flush()

        for step in range(1, 100):
            write(step)
        with tensorboard(folder / "events", folder / "tensorboard.log") as server, opened() as page:
            page.add_init_script(f"({NOTE_SERIES})()")
            _opened(page, server.address, 99)
            for repeat in range(repeats):
                share = (repeat + 0.5) / repeats  # of the interval since the last reload
                page.wait_for_timeout(share * TENSORBOARD_RELOAD_SECONDS * 1e3)
                written = write(100 + repeat)
                page.wait_for_function("n => window.benchStep >= n", arg=100 + repeat)
                taken.append(page.evaluate("() => window.benchMoment") - written)
    return [seconds("TensorBoard: an event written to its place on the screen", taken)]


def memory(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure the server's memory, and its growth while five sessions are open."""
    run = make_run(folder, "followed", state="running")
    with dashboard(folder) as server, followed(run), opened() as first:
        for page in (first, *(first.context.browser.new_page() for _ in range(SESSIONS - 1))):
            chart_drawn(page, f"{server.address}/live?run={run.name}", 100)
        first.wait_for_timeout(min(240, options.ticks) * 1e3)  # caches fill
        before = server.megabytes()
        first.wait_for_timeout(options.ticks * 1e3)
        after = server.megabytes()
    growth = 100 * (after / before - 1)
    return [
        Figure("server's memory with five sessions", "MB", [after], Goal("at most", 400.0)),
        Figure(f"its growth in {options.ticks} s", "%", [growth], Goal("at most", 5.0)),
    ]


def training(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure a training without and with an open page that follows it, in turns."""
    with (
        Training(folder / "runs", train_command(options, manifest)) as trained,
        dashboard(folder) as server,
        opened() as page,
    ):
        trained.start(options.warmup_steps)
        address = f"{server.address}/live?run={trained.run.name}"
        chart_drawn(page, address, 1)

        def speed() -> float:
            page.wait_for_timeout(2000)  # what opening and closing takes is not measured
            return trained.speed(options.steps, options.batch_size)

        def closed() -> float:
            page.goto("about:blank")
            return speed()

        def open_page() -> float:
            chart_drawn(page, address, 1)
            return speed()

        alone, beside = take_turns({"closed": closed, "open": open_page}, options.repeats).values()
    return [
        Figure("training with an open page over without", "x", ratios(beside, alone), Goal("at least", 0.99)),
        Figure("training without an open page", "images/s", alone),
        Figure("training with an open page", "images/s", beside),
    ]
