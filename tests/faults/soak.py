"""``make soak``: hours of random faults on clusters of hosts, with dashboards open; a report at the end.

The faults come from a seed. When exactly each strikes depends on the machine, so two soaks of one seed are
alike and not equal.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

from labkit.data.prepare import prepare
from tests.app.browser import CHROMIUM, QUIET, dashboard
from tests.faults.disturbances import HOSTS, Network, disk_at, hanging
from tests.faults.launched import Cluster, until
from tests.faults.outcome import IN_STEP, assert_same_run, assert_whole

STEPS = 400
FIELDS = IN_STEP | {
    "train_steps": STEPS,
    "checkpoint_every_steps": 20,
    "progress_timeout_seconds": 5.0,
    "max_restarts": 10_000,
}
LONGEST_RUN = 1800.0  # seconds after which a run counts as hanging
TASKS = {"sync": ("worker:0", "worker:1"), "async": ("chief:0", "ps:0", "worker:0")}
FAULTS = (
    "killed", "killed", "frozen", "hung", "link cut", "link deaf", "link slow", "disk full", "stopped",
    "launcher killed",
)  # fmt: skip
# What the launcher ends with after each of these, and the same command goes on. A disk that is full before
# the training begins is bad input, 2.
ENDS = {"stopped": (128 + signal.SIGTERM,), "launcher killed": (-signal.SIGKILL,), "disk full": (1, 2)}


@dataclass
class Report:
    """What a soak saw. ``memory`` and ``files``: of the dashboard's server, a sample every half minute."""

    seed: int
    faults: Counter = field(default_factory=Counter)
    runs: Counter = field(default_factory=Counter)
    sessions: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def text(self, minutes: float) -> str:
        lines = [
            f"A soak of {minutes:.0f} minutes with the seed {self.seed}, on {os.cpu_count()} cores.",
            "",
            "| fault | times |",
            "| --- | --- |",
            *(f"| {name} | {count} |" for name, count in sorted(self.faults.items())),
            "",
            f"{self.runs['sync']} synchronous and {self.runs['async']} asynchronous runs of {STEPS} steps "
            f"ended, in {self.sessions} calls of the launcher and with {self.restarts} restarts by it. In "
            "each, every step counted once, the last checkpoint was of the last step, and no process was "
            "left; the synchronous ones equal the undisturbed run bit by bit.",
            f"Dashboard's server, two pages open: {_trend(self.memory)} MB, {_trend(self.files)} open files.",
            f"Failures: {len(self.failures) or 'none'}.",
        ]
        return "\n".join([*lines, *(f"- {failure}" for failure in self.failures)]) + "\n"


def _trend(values: list) -> str:
    """Return the means of the second and of the last quarter: the first one is the start."""
    quarter = max(1, len(values) // 4)
    second, last = values[quarter : 2 * quarter] or values, values[-quarter:]
    return f"{sum(second) / len(second):.0f} → {sum(last) / len(last):.0f}" if values else "not measured"


class Soak:
    """One soak in ``folder``, whose ``disk`` the runs lie on."""

    def __init__(self, folder: Path, disk: Path, report: Report) -> None:
        self.folder, self.disk, self.report = folder, disk, report
        self.chance = random.Random(report.seed)
        # So that worker:1, whenever the file is there, lives and does nothing.
        hook, self.hang = hanging(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(hook), os.getcwd()])
        self.data = prepare("shapes", folder / "data", validation_size=0).manifest.directory.parent
        self.undisturbed = Cluster(folder / "undisturbed", data_dir=self.data, **FIELDS)
        assert self.undisturbed.end() == 0, self.undisturbed.text()

    def run(self, number: int, sample: Callable[[], None]) -> None:
        """Train one run to its end, through whatever happens."""
        mode = "sync" if number % 2 == 0 else "async"
        path = self.disk / f"run-{number}"
        give_up = time.monotonic() + LONGEST_RUN
        while time.monotonic() < give_up:
            cluster = Cluster(
                path, ps=0 if mode == "sync" else 1, hosts=True, data_dir=self.data,
                **FIELDS | {"sync": mode == "sync"},
            )  # fmt: skip
            try:
                code = self._session(cluster, mode, sample)
            finally:
                cluster.destroy()
            self.report.sessions += 1
            self.report.restarts += cluster.restarts()
            if code == 0:
                assert_whole(cluster, STEPS)
                if mode == "sync":
                    assert_same_run(self.undisturbed, cluster)
                self.report.runs[mode] += 1
                shutil.rmtree(path)
                return
        raise AssertionError(
            f"run {number} ({mode}) did not end within {LONGEST_RUN:.0f} s\n{cluster.text()}"
        )

    def _session(self, cluster: Cluster, mode: str, sample: Callable[[], None]) -> int:
        done: list[str] = []
        # It ends at once where the session before was stopped behind its last step.
        until(lambda: cluster.said(HOSTS) or cluster.launcher.poll() is not None, cluster.text)
        network = Network(cluster) if cluster.said(HOSTS) else None
        while cluster.launcher.poll() is None:
            end = time.monotonic() + self.chance.uniform(2.0, 12.0)
            while time.monotonic() < end and cluster.launcher.poll() is None:
                sample()
                time.sleep(0.2)
            if network and cluster.launcher.poll() is None:
                done.append(self._strike(cluster, network, mode))
                self.report.faults[done[-1]] += 1
                if done[-1] in ("stopped", "launcher killed"):
                    break
        code = cluster.end(180.0)
        if code != 0 and not any(code in ENDS.get(what, ()) for what in done):
            raise AssertionError(f"after {', '.join(done)} the launcher ended with {code}\n{cluster.text()}")
        until(lambda: not cluster.processes(), lambda: f"{cluster.processes()} are left", 60.0)
        return code

    def _strike(self, cluster: Cluster, network: Network, mode: str) -> str:
        """Do something bad. Returns its name."""
        who = self.chance.choice(TASKS[mode])
        host, seconds = who.replace(":", "-"), self.chance.uniform(1.0, 15.0)
        what = self.chance.choice(FAULTS)
        with suppress(subprocess.CalledProcessError, psutil.Error):  # the launcher has ended meanwhile
            if what == "hung":
                self.hang.touch()
                time.sleep(1.0)
                if self.hang.exists():  # the process that takes it away was not there
                    self.hang.unlink()
                    return "nothing"
            elif what in ("killed", "frozen"):
                self._hurt(cluster, who, what, seconds)
            elif what == "disk full":
                with filled(self.disk):
                    time.sleep(seconds)
            elif what in ENDS:
                cluster.launcher.send_signal(signal.SIGTERM if what == "stopped" else signal.SIGKILL)
            else:
                begin, end = {
                    "link cut": (network.cut, network.join),
                    "link deaf": (network.hear_nothing, network.hear_again),
                    "link slow": (lambda name: network.slow_down(name, "1mbit"), network.hear_again),
                }[what]
                begin(host)
                time.sleep(seconds)
                end(host)
        return what

    def _hurt(self, cluster: Cluster, who: str, what: str, seconds: float) -> None:
        process = cluster.task(who)
        if process is None:  # it has just been started again
            return
        process.send_signal(signal.SIGKILL if what == "killed" else signal.SIGSTOP)
        if what == "frozen":
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on a disk."""
    filling = disk / "filling"
    subprocess.run(["dd", "if=/dev/zero", f"of={filling}", "bs=1M"], check=False, capture_output=True)
    try:
        yield
    finally:
        filling.unlink()


@contextmanager
def watched(disk: Path, home: Path, report: Report) -> Iterator[Callable[[], None]]:
    """Open the dashboard in two pages; gives what takes a sample of its server every half minute."""
    with dashboard(home) as (address, pid), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        pages: list[Page] = [browser.new_page() for _ in range(2)]
        for page, place in zip(pages, ("", "live"), strict=True):
            page.goto(f"{address}/{place}?folder={disk}")
        server = psutil.Process(pid)
        due = [time.monotonic() + 30.0]

        def sample() -> None:
            if time.monotonic() < due[0]:
                return
            due[0] = time.monotonic() + 30.0
            report.memory.append(server.memory_info().rss / 1e6)
            report.files.append(server.num_fds())
            for page in pages:
                if page.locator('[data-testid="stException"]').count():
                    report.failures.append(f"the dashboard shows an error: {page.url}")

        yield sample
        browser.close()


def main() -> int:
    """Soak for some minutes; print the report. Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="default: 120")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--output", type=Path, help="file for the report, in Markdown")
    options = parser.parse_args()
    report, began = Report(options.seed), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        (folder / "home").mkdir()
        os.environ["LABKIT_HOME"] = str(folder / "home")
        disk = stack.enter_context(disk_at(folder / "disk"))
        sample = stack.enter_context(watched(disk, folder / "home", report))
        soak, number = Soak(folder, disk, report), 0
        while time.monotonic() - began < 60.0 * options.minutes:
            try:
                soak.run(number, sample)
            except Exception as error:
                report.failures.append(f"run {number}: {error}")
                print(f"run {number} FAILED: {error}", file=sys.stderr, flush=True)
            number += 1
            minutes = (time.monotonic() - began) / 60
            print(f"{minutes:.1f} min: {number} runs, {report.faults.total()} faults", flush=True)
    text = report.text((time.monotonic() - began) / 60)
    print(text)
    if options.output:
        options.output.write_text(text)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
