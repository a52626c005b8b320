"""The dashboard, TensorBoard and a browser, as `dashboard.py` measures them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import requests

from benchmarks.common import ROOT

__all__ = [
    "CHROMIUM",
    "SECONDS_TO_WAIT",
    "Server",
    "browser",
    "chart_drawn",
    "dashboard",
    "free_port",
    "tensorboard",
    "timed",
    "visit",
]

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


class Server:
    """A server and its children on the loopback address, ended with the block.

    A browser keeps a page's code by the port, so that a new server at the port of an earlier one is opened by
    a browser that has the code.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str], port: int) -> None:
        self.port = port
        self._log = log
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [*command, str(self.port)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self) -> None:
        """Wait until it answers. Raises RuntimeError with the end of its log if it doesn't.

        Streamlit listens before it has loaded the dashboard.
        """
        give_up = time.monotonic() + SECONDS_TO_WAIT
        while True:
            try:
                requests.get(self.address, timeout=SECONDS_TO_WAIT).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
                    raise RuntimeError(f"the server did not start; the end of its log:\n{tail}") from None
            time.sleep(0.02)

    def cpu_seconds(self) -> float:
        """Return the CPU time that it and its children have used."""
        return sum(sum(one.cpu_times()[:2]) for one in self._all())

    def megabytes(self) -> float:
        """Return the resident memory of it and its children, MB."""
        return sum(one.memory_info().rss for one in self._all()) / 1e6

    def _all(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]


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
def browser() -> Iterator[Any]:
    """Start a Chromium with an empty cache. Raises RuntimeError if there is none."""
    if CHROMIUM is None:
        raise RuntimeError("no Chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def visit(chromium: Any) -> Iterator[Any]:
    """Open a page of 1280 x 720 pixels without cookies and cache of earlier ones; close it with the block."""
    context = chromium.new_context(viewport={"width": 1280, "height": 720})
    context.set_default_timeout(SECONDS_TO_WAIT * 1e3)
    try:
        yield context.new_page()
    finally:
        context.close()


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
