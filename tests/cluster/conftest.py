"""A local cluster of acting tasks, in a launcher of its own process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from labkit.run_directory import process_alive
from tests.signals import as_from_a_terminal

LIMIT = 60.0  # seconds until a test gives up; nothing waits for it to pass
ACTOR = Path(__file__).with_name("acting_task.py")
LAUNCHER = """
import json, sys
from pathlib import Path
from labkit.cluster.local_run import Patience, run_local_cluster
options = json.loads(sys.argv[1])
sys.exit(run_local_cluster(
    options["command"], folder=Path(options["folder"]), patience=Patience(**options["patience"]),
    output=lambda line: print(line, flush=True), **options["run"],
))
"""


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: "it never came") -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


class Cluster:
    """A launcher in its own process, its tasks, and the processes that they recorded."""

    def __init__(self, folder: Path, *, patience: dict[str, float] | None = None, **run: object) -> None:
        self.state, self.heartbeats = folder / "state", folder / "run" / "cluster"
        self._log = folder / "log.txt"
        self.state.mkdir()
        options = {
            "command": [sys.executable, str(ACTOR), str(self.state), str(self.heartbeats)],
            "folder": str(self.heartbeats),
            "patience": patience or {},
            "run": {"stall_timeout": 100.0, **run},
        }
        with open(self._log, "wb") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, json.dumps(options)],
                stdout=log,
                stderr=log,
                preexec_fn=as_from_a_terminal,
            )

    def lives(self, name: str) -> list[dict]:
        """Return what each process of a task recorded, in order."""
        found = [json.loads(path.read_text()) for path in self.state.glob(f"{name}.*.json")]
        return sorted(found, key=lambda life: life["time"])

    def met(self, name: str, life: int = 1) -> bool:
        lives = self.lives(name)
        return len(lives) >= life and (self.state / f"met.{lives[life - 1]['pid']}").exists()

    def wait_for(self, *names: str, life: int = 1) -> None:
        """Wait until these tasks are in a session, in their n-th life."""
        until(lambda: all(self.met(name, life) for name in names), self.text)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.lives(name)[-1]["pid"], number)

    def step(self) -> int:
        return int((self.state / "checkpoint").read_text())

    def text(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[str]:
        return self.text().splitlines()

    def processes(self) -> list[int]:
        lives = [json.loads(path.read_text()) for path in self.state.glob("*.json")]
        return [pid for life in lives for pid in (life["pid"], life["helper"])]

    def end(self) -> int:
        """Return the launcher's exit code; by then nothing may be left."""
        code = self.launcher.wait(LIMIT)
        assert self.processes()
        assert not [pid for pid in self.processes() if process_alive(pid)], self.text()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(**options: object) -> Cluster:
        made.append(Cluster(tmp_path, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.launcher.kill()
        cluster.launcher.wait()
        for pid in filter(process_alive, cluster.processes()):  # after a failure; a passed test has checked
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
