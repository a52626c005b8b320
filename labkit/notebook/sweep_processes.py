"""The processes of a sweep: several commands at once, of which each runs a notebook."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.reaped import start_reaped
from labkit.notebook.execution import SECONDS_TO_SAVE
from labkit.notebook.files import failed_path

__all__ = ["run_all"]

POLL_SECONDS = 0.1


@dataclass
class _Started:
    """A process that runs a notebook, in a session of its own (``start_reaped``)."""

    process: "subprocess.Popen[bytes]"
    control: int  # writing end of the pipe to the subreaper
    log: Path
    began: float

    def ask_to_save(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.control, b"T")

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("labkit: error: ") if lines else "it printed nothing"

    def close(self) -> None:
        os.close(self.control)  # kills what is left
        self.process.wait()


def _start(command: Sequence[str], log: Path) -> _Started:
    with log.open("wb") as output:
        process, control = start_reaped(command, stdout=output)
    return _Started(process, control, log, time.monotonic())


@contextlib.contextmanager
def _closing(running: dict[int, _Started]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for started in running.values():
            started.ask_to_save()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for started in running.values():
                started.process.wait(SECONDS_TO_SAVE)
        raise
    finally:
        for started in running.values():
            started.close()


def run_all(
    commands: Sequence[Sequence[str]],
    names: Sequence[str],
    targets: Sequence[Path],
    at_a_time: int,
    announce: Callable[[str], None],
) -> list[str]:
    """Run the commands, ``at_a_time`` at once. Returns the last line that each printed into its log.

    What an earlier sweep left at a command's target is removed when the command starts.
    """
    reasons, waiting = [""] * len(commands), list(range(len(commands)))
    running: dict[int, _Started] = {}
    with _closing(running):
        while waiting or running:
            while waiting and len(running) < at_a_time:
                number = waiting.pop(0)
                announce(f"{number + 1} of {len(commands)}: {names[number]}: starts")
                target = targets[number]
                for earlier in (target, failed_path(target)):
                    earlier.unlink(missing_ok=True)
                running[number] = _start(commands[number], target.with_name(f"{target.stem}.log"))
            time.sleep(POLL_SECONDS)
            for number in [number for number in running if running[number].process.poll() is not None]:
                ended = running.pop(number)
                reasons[number], seconds = ended.last_line(), time.monotonic() - ended.began
                said = f"done in {seconds:.0f} s" if ended.process.returncode == 0 else reasons[number]
                ended.close()
                announce(f"{number + 1} of {len(commands)}: {names[number]}: {said}")
    return reasons
