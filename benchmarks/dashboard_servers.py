"""The dashboard, TensorBoard and a browser, as `dashboard.py` measures them."""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import requests

from benchmarks.processes import Process
from benchmarks.report import Figure, Goal

SECONDS_TO_WAIT = 120.0  # the longest that anything in a page may take
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# The first board of charts on the page shows the row of step `n`, and at least one of its charts is drawn.
DRAWN = """n => {
  const root = document.querySelector('.lk-board');
  const board = root?.parentElement.labkitBoard;
  return (board?.data?.extent?.[1] ?? -1) >= n && (root.querySelector('canvas')?.width ?? 0) > 0;
}"""
# Notes the moment of the next click or key, and the first frame after it in which `seen` returns true.
WATCH = """() => {
  window.benchBegan = window.benchTook = null;
  const begin = () => { window.benchBegan ??= performance.now(); };
  for (const kind of ['click', 'keydown', 'mouseup'])
    document.addEventListener(kind, begin, {capture: true, once: true});
  const seen = (SEEN);
  const before = (STATE)();
  const look = () => {
    if (window.benchBegan !== null && seen(before, (STATE)())) {
      window.benchTook = performance.now() - window.benchBegan;
    } else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


class Server(Process):
    """A server and its children on the loopback address, ended with the block.

    A browser keeps a page's code by the port, so that a new server at the port of an earlier one is opened by
    a browser that has the code.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str], port: int) -> None:
        self.port = port
        super().__init__([*command, str(port)], log, environment, start_new_session=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Wait until it answers: Streamlit listens before it has loaded the dashboard."""
        try:
            self.wait_until(self._answers, "answer of the server", SECONDS_TO_WAIT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        super().__exit__()

    def _answers(self) -> bool:
        try:
            requests.get(self.address, timeout=SECONDS_TO_WAIT).close()
        except OSError:
            return False
        return True

    def megabytes(self) -> float:
        """Return the resident memory of it and its children, MB."""
        return sum(one.memory_info().rss for one in self.family()) / 1e6


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dashboard(home: Path, port: int | None = None) -> Server:
    """Start the dashboard on the runs in ``home``. ``port``: None takes a free one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
    environment |= {"LABKIT_HOME": str(home), "LABKIT_RUNS": ""}
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py"]
    command += ["--server.headless", "true", "--server.port"]
    return Server(command, home / "dashboard.log", environment, port or free_port())


def tensorboard(folder: Path, log: Path, port: int | None = None) -> Server:
    """Start TensorBoard on the event files in ``folder``, at which it looks every second."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    command += ["--reload_interval", "1", "--port"]
    return Server(command, log, dict(os.environ), port or free_port())


@contextmanager
def opened() -> Iterator[Any]:
    """Open a page of 1280 x 720 pixels in a Chromium with an empty cache. RuntimeError if there is none."""
    if CHROMIUM is None:
        raise RuntimeError("no Chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            page = chromium.new_page(viewport={"width": 1280, "height": 720})
            page.set_default_timeout(SECONDS_TO_WAIT * 1e3)
            yield page
        finally:
            chromium.close()


def seconds(name: str, taken: Sequence[float], goal: float | None = None) -> Figure:
    """Return the figure of the seconds that something took, with the longest that they may be."""
    return Figure(name, "s", taken, None if goal is None else Goal("at most", goal))


def behind_a_first(repeats: int, take: Callable[[], float]) -> list[float]:
    """Return what ``repeats`` calls take, behind one that loads what a server or a browser then keeps."""
    return [take() for _ in range(repeats + 1)][1:]


def chart_drawn(page: Any, address: str, step: int) -> float:
    """Return the seconds from asking for ``address`` until the charts show the row of ``step``."""
    started = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_function(DRAWN, arg=step)
    return time.perf_counter() - started


def timed(page: Any, act: Any, state: str, seen: str = "(before, now) => now && now !== before") -> float:
    """Return the seconds from a click or key to its effect, both taken within the page.

    Args:
        page: where it happens.
        act: makes the click or presses the key.
        state: JavaScript function without arguments whose value is looked at once per frame.
        seen: JavaScript function of that value before and now; true when the effect is there.
    """
    page.evaluate(WATCH.replace("SEEN", seen).replace("STATE", state))
    act()
    page.wait_for_function("() => window.benchTook !== null")
    return float(page.evaluate("() => window.benchTook")) / 1e3
