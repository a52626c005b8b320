"""What `dashboard.py` measures on curves: long runs, runs that are followed, and the cost of following."""

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.dashboard_runs import (
    EventStream,
    followed,
    make_run,
    write_events,
    write_metrics,
)
from benchmarks.dashboard_servers import (
    SECONDS_TO_WAIT,
    browser,
    chart_drawn,
    dashboard,
    free_port,
    tensorboard,
    visit,
)
from benchmarks.processes import Training, train_flags, train_images_per_second
from labkit.data.manifest import Manifest

__all__ = [
    "TENSORBOARD_RELOAD_SECONDS",
    "follow",
    "follow_in_tensorboard",
    "long_run",
    "long_run_in_tensorboard",
    "memory",
    "training_beside",
]

SESSIONS = 5
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


def long_run(folder: Path, repeats: int, rows: int) -> dict[str, list[float]]:
    """Return the seconds to open a long run with a new server, to open it again, and to zoom into it.

    The browser has been there before. What it takes to load the code of the page is measured by itself.
    """
    run = make_run(folder, "long", step=rows)
    write_metrics(run, rows)
    taken: dict[str, list[float]] = {"first": [], "again": [], "zoom": []}
    port = free_port()
    with browser() as chromium, visit(chromium) as page:
        for _ in range(-1, repeats):
            with dashboard(folder, port) as server:
                address = f"{server.address}/live?run={run.name}"
                for name in ("first", "again"):
                    page.goto("about:blank")
                    taken[name].append(chart_drawn(page, address, rows))
                    page.wait_for_timeout(1000)
                taken["zoom"].append(_zoom(page))
                page.goto("about:blank")
    return {name: values[1:] for name, values in taken.items()}


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


def long_run_in_tensorboard(folder: Path, repeats: int, rows: int) -> list[float]:
    """Return the seconds until a TensorBoard that has just started shows the last step of the same scalars.

    The browser has been there before. Where a page has not all of it after five seconds, it is reloaded, as
    a person would do.
    Raises playwright's TimeoutError after ``SECONDS_TO_WAIT``.
    """
    write_events(folder / "events" / "long", rows)
    taken = []
    port = free_port()
    with browser() as chromium, visit(chromium) as page:
        page.add_init_script(f"({NOTE_SERIES})()")
        for _ in range(-1, repeats):
            with tensorboard(folder / "events", folder / "tensorboard.log", port) as server:
                taken.append(_opened(page, server.address, rows))
            page.goto("about:blank")
    return taken[1:]


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


def follow(folder: Path, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Follow a run of ten rows a second. Returns lists with one value per repeat of ``seconds``.

    ``median`` and ``worst``: seconds from a row in the file to its place on the screen; ``cpu``: per cent of
    a core that the server takes meanwhile.
    """
    run = make_run(folder, "followed", state="running")
    taken: dict[str, list[float]] = {"median": [], "worst": [], "cpu": []}
    with (
        dashboard(folder) as server,
        followed(run) as written,
        browser() as chromium,
        visit(chromium) as page,
    ):
        chart_drawn(page, f"{server.address}/live?run={run.name}", 100)
        page.wait_for_timeout(3000)
        page.evaluate(NOTE_STEPS)
        for _ in range(repeats):
            began, moment, used = time.perf_counter(), time.time(), server.cpu_seconds()
            page.wait_for_timeout(seconds * 1e3)
            cpu = (server.cpu_seconds() - used) / (time.perf_counter() - began)
            until = time.time()
            last = max(step for step, when in written.items() if when < until)
            page.wait_for_function("n => (window.benchSteps.at(-1)?.[0] ?? -1) >= n", arg=last)
            late = delays(written, page.evaluate("() => window.benchSteps"), moment, until)
            taken["median"].append(statistics.median(late))
            taken["worst"].append(max(late))
            taken["cpu"].append(100 * cpu)
    return taken


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


def follow_in_tensorboard(folder: Path, repeats: int) -> list[float]:
    """Return the seconds from an event in the file to its place in TensorBoard's chart.

    The server looks for new events every second and the page asks for them every 30 s. Events are written at
    times spread over that interval.
    """
    taken = []
    stream = EventStream(folder / "events" / "followed")
    try:
        for step in range(1, 100):
            stream.loss(step)
        with (
            tensorboard(folder / "events", folder / "tensorboard.log") as server,
            browser() as chromium,
            visit(chromium) as page,
        ):
            page.add_init_script(f"({NOTE_SERIES})()")
            _opened(page, server.address, 99)
            for repeat in range(repeats):
                share = (repeat + 0.5) / repeats  # of the interval since the last reload
                page.wait_for_timeout(share * TENSORBOARD_RELOAD_SECONDS * 1e3)
                written = stream.loss(100 + repeat)
                page.wait_for_function("n => window.benchStep >= n", arg=100 + repeat)
                taken.append(page.evaluate("() => window.benchMoment") - written)
    finally:
        stream.close()
    return taken


def memory(folder: Path, ticks: int) -> tuple[float, float]:
    """Return the server's memory, MB, and its growth, per cent, in ``ticks`` seconds of five sessions."""
    run = make_run(folder, "followed", state="running")
    with dashboard(folder) as server, followed(run), browser() as chromium, ExitStack() as stack:
        for _ in range(SESSIONS):
            page = stack.enter_context(visit(chromium))
            chart_drawn(page, f"{server.address}/live?run={run.name}", 100)
        page.wait_for_timeout(min(240, ticks) * 1e3)  # caches fill
        before = server.megabytes()
        page.wait_for_timeout(ticks * 1e3)
        after = server.megabytes()
    return after, 100 * (after / before - 1)


def training_beside(
    options: argparse.Namespace, manifest: Manifest, folder: Path
) -> tuple[list[float], list[float]]:
    """Return per repeat the images/s of a training without and with an open page that follows it."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    alone: list[float] = []
    beside: list[float] = []
    with (
        Training(folder / "runs", flags) as training,
        dashboard(folder) as server,
        browser() as chromium,
        visit(chromium) as page,
    ):
        training.start(options.warmup_steps)
        address = f"{server.address}/live?run={training.run.name}"
        chart_drawn(page, address, 1)

        def turn(speeds: list[float], *, opened: bool) -> None:
            if opened:
                chart_drawn(page, address, 1)
            else:
                page.goto("about:blank")
            page.wait_for_timeout(2000)  # what opening and closing takes is not measured
            speeds.append(train_images_per_second(training.turn(options.steps), options.batch_size))

        for repeat in range(options.repeats):
            for opened in (False, True) if repeat % 2 == 0 else (True, False):
                turn(beside if opened else alone, opened=opened)
            print(f"repeat {repeat + 1}: {alone[-1]:.0f} images/s, open {beside[-1]:.0f}", flush=True)
    return alone, beside
