"""The dashboard's server and a browser, for tests that drive pages as people do."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from labkit.startup.others import other_users
from tests.listening import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60  # seconds; the longest that anything may take on a busy machine
START_PATIENCE = 180  # seconds; the same for a training that starts: it imports TensorFlow and builds a graph
expect.set_options(timeout=PATIENCE * 1000)
# The board of charts that stands first on the page (app/charts/assets/board.js).
BOARD = "document.querySelector('.lk-board')?.parentElement.labkitBoard"
# While a page is computed, parts of the page before are shown faintly.
IDLE = """() => document.querySelector('[data-testid="stApp"]')?.dataset.testScriptState === 'notRunning'
    && !document.querySelector('[data-stale="true"], .stSkeleton, [data-testid="stSkeleton"]')"""
# Streamlit looks for its server below an address such as /live first, and then at the root.
SOUGHT_BELOW = re.compile(r"http://127\.0\.0\.1:\d+/[a-z]+/_stcore/(health|host-config)$")
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
def dashboard(
    home: Path, script: str = "app/main.py", cwd: Path = CHECKOUT, **variables: str
) -> Iterator[tuple[str, int]]:
    """Start the documented command. Yields the address and the server's process id.

    ``variables``: of its environment. On a machine where other people are, it would ask for a token.
    """
    if other_users():
        variables = {"LABKIT_TOKEN": "", **variables}
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", script, "--server.headless", "true"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
    environment |= {"LABKIT_HOME": str(home), "LABKIT_RUNS": "", **variables}
    log = home / "dashboard.log"
    with (
        open(log, "wb") as output,
        process(
            [*command, "--server.port", str(port)], cwd=cwd, env=environment, stdout=output, stderr=output
        ) as server,
    ):
        wait_for(lambda: listening(server.pid, port), server, log)
        yield f"http://127.0.0.1:{port}", server.pid


def wait_for(
    ready: Callable[[], object],
    started: subprocess.Popen,
    log: Path | None = None,
    patience: float = PATIENCE,
) -> None:
    end = time.monotonic() + patience
    while not ready():
        assert started.poll() is None, f"ended early: {log.read_text() if log else started.args}"
        assert time.monotonic() < end, (
            f"not ready after {patience} s: {log.read_text() if log else started.args}"
        )
        time.sleep(0.05)


def listening(pid: int, port: int) -> list[str]:
    """Return the addresses on which the process or a child of it listens at ``port``."""
    parent = psutil.Process(pid)
    found = [c for one in (parent, *parent.children(True)) for c in one.net_connections("inet")]
    return [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN and c.laddr.port == port]


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

    def __call__(self, page: Any) -> "Visit":
        """Watch ``page`` too, another window of the same browser. Returns the visit."""
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        return self

    def _hear(self, message: Any) -> None:
        if message.type == "error" and not SOUGHT_BELOW.match(message.location.get("url", "")):
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")

    def _note(self, url: str) -> None:
        if "//127.0.0.1:" not in url and "//" in url[:9]:
            self.elsewhere.append(url)


def until(page: Any, true: Callable[[], object], what: str = "not true") -> None:
    """Look again and again until ``true`` holds. A page follows what happened with a delay."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"after {PATIENCE} s: {what}"
        page.wait_for_timeout(50)


def becomes(page: Any, look: Callable[[], Any], wanted: Any) -> None:
    """Look again and again until that gives ``wanted``."""
    seen: list[Any] = []
    with suppress(AssertionError):
        until(page, lambda: seen.append(look()) or seen[-1] == wanted)
    assert seen[-1] == wanted


def still(part: Any) -> dict[str, float]:
    """Return the place of a part of the page, once the page is computed and the part has stopped moving."""
    part.wait_for()
    part.page.wait_for_function(IDLE)
    places: list[Any] = [None]

    def stands() -> bool:
        part.page.wait_for_timeout(200)
        places.append(part.bounding_box())
        return bool(places[-1] and places[-1] == places[-2])

    until(part.page, stands, "it still moves")
    return places[-1]


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """Start a browser. Skips the test where there is no Chromium. ``flags``: of Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *flags])
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Any, **page_options: Any) -> Iterator[Visit]:
    """Open a page of a person who was never here."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **page_options})
    page = context.new_page()
    visit = Visit(page)(page)
    try:
        yield visit
    except Exception:
        # What a person would have seen, for the report of the test.
        with suppress(Exception):
            print(page.url, page.inner_text("body", timeout=5000), *visit.complaints, sep="\n")
        raise
    finally:
        context.close()


@contextmanager
def browser_visit(*flags: str, **page_options: Any) -> Iterator[Visit]:
    """Start a browser with one page."""
    with chromium(*flags) as browser, visiting(browser, **page_options) as visit:
        yield visit
