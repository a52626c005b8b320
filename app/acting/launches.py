"""The processes that this server starts: ``labkit train`` and ``resume``, which go on without the server, and
short commands.

Each function that acts refuses where the dashboard is read-only, whatever the page has drawn.
"""

import shlex
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from types import MappingProxyType
from typing import IO

from app import background, state
from app.ask.client import Progress
from app.markup import read_end
from labkit.cluster.flags import local_cluster_command, tasks_of
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.parts.trust import APPROVED, check_trust, digest_of, files_of, is_accepted
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status
from labkit.run_directory.directory import make_private
from labkit.run_directory.disk import holds_something_else
from labkit.run_directory.files import open_run_file
from labkit.run_directory.stop import ask_to_stop, refuse_elsewhere, training_process
from labkit.startup.child import REASON, python_command
from labkit.startup.process import Child, described_exit, start_detached

END_SECONDS = 10.0  # from the last status of a process to its end
LAST_BYTES = 65_536  # of the output that are read


@dataclass
class Launch:
    """A process that was started for a run.

    Args:
        run: what it trains.
        process: the one that was started.
        before: the run's status before the start.
        offset: bytes of the log that earlier processes have written.
        reason: the file in which it says why it refuses.
        is_new: whether the directory was made for it.
    """

    run: RunDirectory
    process: "Popen[bytes]"
    before: Status | None
    offset: int
    reason: IO[bytes]
    is_new: bool

    @property
    def has_begun(self) -> bool:
        """Whether the training has written its first status; from then on its directory tells all."""
        status = self.run.read_status() if self.run.exists() else None
        return status is not None and status != self.before

    @property
    def is_waiting(self) -> bool:
        """Whether its process checks and loads, and has not begun to train."""
        return self.process.poll() is None and not self.has_begun

    @property
    def output(self) -> list[str]:
        """The last lines that its process has printed."""
        text = read_end(self.run.console_path, LAST_BYTES, self.offset).decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()]

    @property
    def refusal(self) -> str:
        """Why it ended without training, in a sentence; "" where it trains or still may."""
        if self.process.poll() is None or self.has_begun:
            return ""
        if self.process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM):
            return "The start was cancelled."
        self.reason.seek(0)
        last = (self.output or ["it printed nothing"])[-1]
        return self.reason.read().decode() or f"it ended with exit code {self.process.returncode}: {last}"


_started: dict[Path, Launch] = {}  # by the path of the run: all that this server has started
_lock = threading.Lock()


def launch_of(run: RunDirectory) -> Launch | None:
    """Return what this server last started for the run."""
    return _started.get(run.path)


def start(arguments: Sequence[str], run: RunDirectory) -> None:
    """Start the training of a new run. A second call while the first one starts does nothing.

    Args:
        arguments: of ``labkit``, each a word of its own.
        run: the directory that they name.

    Raises InputError where the directory is taken or can't be made.
    """
    state.check_may_act()
    with _lock:
        known = _started.get(run.path)
        if known is not None and known.process.poll() is None:
            return
        if why := why_taken(run):
            raise InputError(why)
        try:
            make_private(run.path)
        except OSError as error:
            raise InputError(f"{run.path} can't be made: {error.strerror}; choose another name") from None
        _started[run.path] = _launched(arguments, run, is_new=True)


def why_taken(run: RunDirectory) -> str:
    """Return why the directory can't be that of a new run, with the way out; "" if it can."""
    if run.exists():
        return f"{run.name} is there already; choose another name, or continue it on its Live page"
    try:
        taken = run.path.exists() and (not run.path.is_dir() or holds_something_else(run))
    except OSError as error:
        return f"{str(run.path)[:200]}: {error.strerror}; choose another name"
    return f"{run.path} holds something else; choose another name" if taken else ""


def _launched(
    arguments: Sequence[str],
    run: RunDirectory,
    *,
    is_new: bool,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Launch:
    before = run.read_status()
    try:
        offset = run.console_path.stat().st_size if run.console_path.exists() else 0
        reason = tempfile.NamedTemporaryFile(prefix="labkit-")  # noqa: SIM115 - removed with the launch
        with open_run_file(run.console_path, "ab") as log:
            process = start_detached(arguments, log, {**variables, REASON: reason.name})
    except OSError as error:
        raise InputError(f"{run.name} can't be started: {error.strerror}") from None
    return Launch(run, process, before, offset, reason, is_new)


def cancel(run: RunDirectory) -> None:
    """End a start that has not begun to train."""
    state.check_may_act()
    launch = launch_of(run)
    if launch is not None and launch.is_waiting:
        launch.process.terminate()


def tidy(launch: Launch) -> None:
    """Remove the directory of a start that was refused, so that its name is free again."""
    state.check_may_act()
    if not launch.is_new or launch.run.exists() or launch.process.poll() is None:
        return
    with suppress(OSError):
        if {path.name for path in launch.run.path.iterdir()} <= {launch.run.console_path.name}:
            shutil.rmtree(launch.run.path)
    _started.pop(launch.run.path, None)


@dataclass(frozen=True)
class Resumption:
    """What continues a run: ``arguments`` of ``labkit``, from one reading of what the run records."""

    run: RunDirectory
    config: Config
    files: Mapping[str, bytes]
    tasks: tuple[int, int] | None
    arguments: tuple[str, ...]

    @property
    def is_accepted(self) -> bool:
        """Whether this account has consented to it, or needn't."""
        return is_accepted(self.config, self.files, self.tasks)

    @property
    def command(self) -> str:
        """The command for a shell. Where there is no consent to code or ports, it is the one that asks."""
        known = is_accepted(self.config, self.files)
        words = self.arguments if known else ("resume", str(self.run.path))
        return shlex.join(["labkit", *words])


def resumption(run: RunDirectory) -> Resumption:
    """Return what continues the run.

    Raises InputError where only its tasks' own commands do, or the configuration is damaged.
    """
    config = recorded_config(run).replace({"job_dir": str(run.path)})
    if info := config.task_field():
        raise InputError(
            f"start each of its tasks again with the command that started it (it has {info.flag})"
        )
    tasks = tasks_of(run)
    words = local_cluster_command(run, config, tasks)[1:] or ["resume", str(run.path)]
    return Resumption(run, config, files_of(config), tasks, tuple(words))


def resume(run: RunDirectory) -> None:
    """Continue the training of a run. A second call while the first one starts does nothing.

    Raises InputError for what ``labkit resume`` refuses at once.
    """
    state.check_may_act()
    with _lock:
        known = _started.get(run.path)
        if known is not None and known.is_waiting:
            return
        process = _still_training(run)
        if process is not None:
            raise InputError(f"{run.name} is running already, in process {process}")
        refuse_elsewhere(run, "resume")
        found = resumption(run)
        check_trust(run, found.config, found.files, found.tasks)
        approved = {APPROVED: digest_of(found.files)}
        _started[run.path] = _launched(list(found.arguments), run, is_new=False, variables=approved)


def join_search(folder: RunDirectory) -> None:
    """Go on with the search in a folder. A second call while it does does nothing. Raises InputError."""
    state.check_may_act()
    with _lock:
        known = _started.get(folder.path)
        if known is None or known.process.poll() is not None:
            words = ["search", "--join", str(folder.path)]
            _started[folder.path] = _launched(words, folder, is_new=False)


def _still_training(run: RunDirectory) -> int | None:
    """Return the process that trains the run. One that has said that it ended gets time to be gone."""
    give_up = time.monotonic() + END_SECONDS
    while (process := training_process(run)) is not None:
        status = run.read_status()
        if (status is not None and status.state in ACTIVE_STATES) or time.monotonic() > give_up:
            break
        time.sleep(0.1)
    return process


def stop(run: RunDirectory) -> str:
    """Ask the training of a run to save and stop, as ``labkit stop`` does. Returns what was done.

    Raises InputError where no process of this user on this machine trains it.
    """
    state.check_may_act()
    process = training_process(run)
    if process is None:
        refuse_elsewhere(run, "stop")
        raise InputError(f"{run.name} isn't running any more, or another user runs it")
    try:
        return ask_to_stop(run, process)
    except OSError as error:
        raise InputError(f"{run.path} can't be written: {error.strerror}") from None


def command(arguments: Sequence[str], click: object) -> background.Job[list[str]]:
    """Run a short command of ``labkit``; return the job, whose result is what it prints.

    It ends with this server. Its error is the sentence in which it refuses.

    Args:
        arguments: of ``labkit``, each a word of its own.
        click: tells this click from others: a second call for it does nothing.
    """
    state.check_may_act()

    def work(_: Progress) -> list[str]:
        with Child(python_command("-m", "labkit", *arguments)) as child:
            lines = [line for line in child.lines() if line]
            if code := child.wait():
                raise InputError(child.reason or f"{described_exit(code)}: {' '.join(lines[-1:])}")
        return lines

    return background.start((click, *arguments), background.Job[list[str]](), work)
