"""Run the processes of an experiment, a few at a time: trainings, measurements, notebooks.

A trial is a process that leaves its result in files, such as a run directory. Whoever plans an experiment
reads them to know which trials are left, so that the same command continues an interrupted experiment.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config
from labkit.config.fields import argument
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest
from labkit.errors import InputError, short
from labkit.run_directory import RunDirectory
from labkit.run_directory.disk import check_writable
from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit
from labkit.startup.template import Template
from labkit.training.place import prepared_data_set

POLL_SECONDS = 0.05
NO_MORE = object()
# Also where a script's output goes into a file: an experiment takes hours.
print_at_once = partial(print, flush=True)


@dataclass(frozen=True)
class Trial:
    """A process. ``variables``: additions to its environment. ``log``: takes what it prints; None: stdout."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None

    def start(self, template: Template | None = None) -> Child:
        """Start it. It ends when this process does, even if this process is killed."""
        if self.log is None:
            return Child(self.command, self.variables, stdout=None, stderr=None, template=template)
        with self.log.open("wb") as output:
            return Child(self.command, self.variables, stdout=output, template=template)

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of its log."""
        if self.log is None:
            return []
        return self.log.read_text(errors="replace").strip().splitlines()[-count:]


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended.

    ``code``: its exit code, or minus the signal that killed it. ``reason``: the sentence with which it
    refused, or "". ``peak_memory_bytes``: see ``Child``.
    """

    code: int
    reason: str
    seconds: float
    peak_memory_bytes: int | None

    def __str__(self) -> str:
        return described_exit(self.code)


def run_trials(
    trials: Iterable[Trial | None],
    signals: Sequence[int],
    ended: Callable[[int, TrialEnd], None],
    *,
    at_a_time: int = 1,
    seconds_to_save: float = math.inf,
    meanwhile: Callable[[Mapping[int, Child]], None] = lambda running: None,
    template: Template | None = None,
) -> None:
    """Run trials. An exception, such as one of ``ended``, asks those that run to end, as a signal does.

    Args:
        trials: each is taken when there is room for it. None: there is none now, but may be one later.
        signals: that asked this process to stop, to which ``stop_signals`` adds new ones. After the first
            none is started, and those that run are asked to end (SIGTERM); the next one kills them.
        ended: takes the number of each, from 0, with its end, in the order in which they end.
        at_a_time: how many run at once.
        seconds_to_save: after which a trial that was asked to end is killed.
        meanwhile: is called at each look, with the processes that run by their numbers.
        template: from which trials are forked that train; None: each is a new program.
    """
    waiting, running, handled, more, started = iter(trials), dict[int, Child](), 0, True, 0
    give_up = math.inf
    with ExitStack() as stack:  # which ends whatever still runs
        try:
            while True:
                can_start = template is None or template.ready()
                while can_start and more and not signals and len(running) < at_a_time:
                    more = (trial := next(waiting, NO_MORE)) is not NO_MORE
                    if not isinstance(trial, Trial):
                        break
                    running[started] = stack.enter_context(trial.start(template))
                    started += 1
                if not running and (signals or not more):
                    return
                if len(signals) > handled or time.monotonic() > give_up:
                    for child in running.values():
                        child.kill() if handled else child.terminate()
                    give_up = math.inf if handled else time.monotonic() + seconds_to_save
                    handled += 1
                time.sleep(POLL_SECONDS)
                meanwhile(running)
                for number, child in list(running.items()):
                    if (code := child.poll()) is not None:
                        seconds = time.monotonic() - child.began
                        end = TrialEnd(code, child.reason, seconds, child.peak_memory_bytes)
                        running.pop(number).close()
                        ended(number, end)
        except BaseException:
            for child in running.values():
                child.terminate()
            for child in running.values():
                child.wait(seconds_to_save)
            raise


def run_trial(trial: Trial, signals: Sequence[int], template: Template | None = None) -> TrialEnd:
    """Run one trial to its end; see ``run_trials``. It isn't started if this process was asked to stop."""
    ends: list[TrialEnd] = []
    run_trials([trial], signals, lambda _, end: ends.append(end), template=template)
    return ends[0] if ends else TrialEnd(128 + signals[0], "", 0.0, None)


# ---- trainings -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """One training of an experiment. ``config``: with the run's directory.

    ``run_state``: of its run before, ``new``, ``resumable``, ``failed`` or ``finished``.
    """

    name: str
    config: Config
    run_state: str

    @property
    def run(self) -> RunDirectory:
        assert self.config.run.job_dir is not None
        return RunDirectory(self.config.run.job_dir)


def find_data_set(config: Config, signals: Sequence[int]) -> tuple[dict[str, Any], Manifest]:
    """Return the fields that name the data set, and its manifest; a child process prepares a missing one.

    Raises InputError if it can't be prepared, KeyboardInterrupt if ``signals`` asked this process to stop.
    """
    manifest, _ = prepared_data_set(config, may_prepare=True)
    if manifest is None:
        module, text = "labkit.experiments.comparison.child", json.dumps(config.to_json())
        end = run_trial(Trial(python_command("-m", module, "data", text)), signals)
        if signals:
            raise KeyboardInterrupt
        if end.code:
            raise InputError(f"the data set could not be prepared ({end}); see labkit data prepare --help")
        manifest, _ = prepared_data_set(config, may_prepare=False)
    assert manifest is not None, "without it, the call above raises"
    named = {
        "dataset": manifest.dataset,
        "fold": manifest.source.get("fold"),
        "data_dir": str(manifest.directory.parent),
        "input_path": choose_input_path(manifest, config.data.input_path),
    }
    return named, manifest


def named_folder(flag: str, path: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder that a flag names as a whole path; None without one. Raises InputError."""
    named = argument(flag, path, os.PathLike, optional=True, allowed=home.LOCAL_PATH)
    if named is not None and not home.is_local_path(named):
        raise InputError(f"{flag} is {short(named)}; allowed: {home.LOCAL_PATH}")
    return None if named is None else home.expanded(named).absolute()


def refuse_other_contents(folder: Path, ours: str, kind: str) -> None:
    """Raise InputError if the folder of an experiment can't be written or holds what isn't its own.

    Args:
        folder: that ``--output`` names.
        ours: a pattern of the names that an earlier call may have left there.
        kind: what the folder may hold, such as "a comparison".
    """
    check_writable(folder, "--output")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if others := [name for name in names if not re.fullmatch(ours, name)]:
        raise InputError(
            f"--output {folder} is neither empty nor {kind}: it holds {others[0]}; name another directory"
        )
