"""``labkit stop``, ``resume``, ``fork``: a training that ends early, goes on, or goes on in another way."""

import hashlib
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from labkit.cluster.flags import local_cluster_command, tasks_of
from labkit.commands import train
from labkit.commands.flags import DataDir, Flag, LocalPath, RunName, Seconds, Trust
from labkit.config import by_field, fields_by_name
from labkit.config.config import recorded_by, recorded_config
from labkit.errors import InputError
from labkit.home import expanded
from labkit.parts.trust import accept, check_trust, digest_of, files_of, is_accepted
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.find import find_run
from labkit.run_directory.notes import read_lineage
from labkit.run_directory.stop import ask_to_stop, forget_request, refuse_elsewhere, training_process

if TYPE_CHECKING:
    from labkit.config import Config


def stop(run: RunName, *, wait_seconds: Seconds = 120.0) -> int:
    """Ask a training to save and stop. Returns 0 when it has, 1 where that takes too long.

    Args:
        wait_seconds: Longest time to wait for the training to save and end. Default: 120.
    """
    found = RunDirectory(find_run(run))
    if by := recorded_by(found):
        raise InputError(f"{found.name} was recorded with {by}; end the program that trains it where it runs")
    process = training_process(found)
    if process is None:
        status = found.read_status()
        refuse_elsewhere(found, "stop")
        print(f"{found.name} isn't running: {standing(status)}")
        return 0
    print(f"{ask_to_stop(found, process)}; waiting up to {wait_seconds:g} s")
    give_up = time.monotonic() + wait_seconds
    while training_process(found, process) is not None:
        if time.monotonic() >= give_up:
            print(f"process {process} still trains {found.name}; labkit stop {shlex.quote(run)} waits again")
            return 1
        time.sleep(0.1)
    forget_request(found)
    status = found.read_status()
    print(f"{found.name}: {standing(status)}{_hint(found, status, run)}")
    return 0


def _hint(run: RunDirectory, status: Status | None, name: str) -> str:
    """Return how to continue a run that was stopped, or why that can't be told."""
    if status and status.state == "finished":
        return ""
    try:
        config = recorded_config(run).replace({"job_dir": str(run.path)})
    except InputError as error:
        return f"; {error}"
    words = _how_a_cluster_continues(run, config) if _consented(config) else None
    return f"; labkit resume {shlex.quote(name)} continues it" if words is None else f"; to continue, {words}"


def _consented(config: "Config") -> bool:
    """Return whether a command with this configuration may be shown, to be pasted."""
    try:
        return is_accepted(config, files_of(config))
    except InputError:  # a file of code that isn't here
        return False


def standing(status: Status | None) -> str:
    """Return how far a run is, in words."""
    if status is None:
        return "it has no readable status"
    return f"{status.liveness()} at step {status.step} of {status.total_steps}"


# ---- resume --------------------------------------------------------------------------------------------


def resume(
    run: RunName,
    *,
    data_dir: DataDir | None = None,
    accept_changed_code: Annotated[
        tuple[LocalPath, ...], Flag(nargs="+", action="extend", metavar="FILE")
    ] = (),
    trust: Trust = False,
    **flags: Any,
) -> int:
    """Train a run to its end with the configuration that it was started with. Returns the exit code.

    A run is resumed with its own settings; labkit fork changes them, the number of steps too.

    Args:
        accept_changed_code: Goes on with this file of your own code, in place of the run's copy of the same
            name, which stays in the run.
    """
    from labkit.training.place import fork_command, nothing_left

    found = RunDirectory(find_run(run))
    config = recorded_config(found).replace({"job_dir": str(found.path)})
    status = found.read_status()
    step = status.step if status else 0
    if changed := by_field(flags):
        named = ", ".join(fields_by_name()[name].flag for name in changed)
        if changed.pop("epochs", None) is not None:
            changed["train_steps"] = "STEPS"  # in which the length of a fork is counted
        way_out = fork_command(found, step, **changed) if step else "start it anew with labkit train"
        raise InputError(f"{named} can't be changed in a run; to go on from it with others: {way_out}")
    if status and status.state == "finished":
        print(nothing_left(found))
        return 0
    process = training_process(found)
    if process is not None:
        raise InputError(
            f"{found.name} is running in process {process}; labkit stop {shlex.quote(run)} stops it"
        )
    refuse_elsewhere(found, "resume")
    files = files_of(config)
    check_trust(found, config, files, trust=trust)
    if (words := _how_a_cluster_continues(found, config)) is not None:
        raise InputError(f"{found.name} was trained by a cluster; {words}")
    from labkit.data.of_run import data_dir_of_run

    folder, note = data_dir_of_run(found, config, data_dir)
    if note:
        print(note)
    config = config.replace({"data_dir": folder})
    if accept_changed_code:
        config = _with_code(found, config, accept_changed_code)
        files = files_of(config)
    return train.train_as(
        None, config, False, approved=digest_of(files), accept_changed_code=bool(accept_changed_code)
    )


def _with_code(run: RunDirectory, config: "Config", paths: Sequence[str]) -> "Config":
    """Return the configuration with these files in place of the run's copies. Raises InputError."""
    of = {name: info.code_of(config.flat()[name]) for name, info in fields_by_name().items()}
    names = {name: Path(path).name for name, path in of.items() if path is not None}
    for path in paths:
        if Path(path).name not in names.values():
            has = ", ".join(dict.fromkeys(names.values())) or "none"
            raise InputError(f"--accept-changed-code is {path!r}; {run.name} has code of the names: {has}")
        given = str(expanded(path).absolute())
        values = {
            name: given + config.flat()[name].removeprefix(of[name])
            for name, copy in names.items()
            if copy == Path(path).name
        }
        config = config.replace(values)
    return config


def _how_a_cluster_continues(run: RunDirectory, config: "Config") -> str | None:
    """Return how to continue a run that a cluster has trained; None for a run of one process."""
    if info := config.task_field():
        return f"start each of its tasks again with the command that started it (it has {info.flag})"
    command = local_cluster_command(run, config, tasks_of(run))
    if not command:
        return None
    return f"submit its job again, or continue it on this machine with: {shlex.join(command)}"


def trust(run: RunName) -> int:
    """Consent to run the code that a run has kept, and show which that is.

    A run of somebody else may have code of theirs in its folder code/. Nothing runs that code until this
    account consents to it, byte for byte. Read it first.
    """
    found = RunDirectory(find_run(run))
    config = recorded_config(found)
    files = files_of(config)
    if not files:
        print(f"{found.name} runs no code")
        return 0
    accept(config, files, now=True)
    for path, content in files.items():
        print(f"your account runs {path} from now on, SHA-256 {hashlib.sha256(content).hexdigest()}")
    return 0


# ---- fork ----------------------------------------------------------------------------------------------


def fork(
    run: RunName,
    *,
    at: Annotated[int, Flag(metavar="STEP")],
    settings: Annotated[
        tuple[str, ...], Flag(flags=("--set",), nargs="+", action="extend", metavar="NAME=VALUE")
    ] = (),
    job_dir: Annotated[LocalPath | None, Flag(metavar="DIR")] = None,
    trust: Trust = False,
) -> int:
    """Fork a run. Returns 0. Raises InputError before anything is written.

    Args:
        at: Last step that both share, from 1.
        settings: Settings of the fork that differ, named as the flags of labkit train: learning_rate=0.01.
        job_dir: Directory of the fork. Default: <run>-fork-<STEP> beside the run.
    """
    changes = train.settings_of(settings)
    parent = RunDirectory(find_run(run))
    path = expanded(job_dir or parent.path.with_name(f"{parent.name}-fork-{at}")).absolute()
    from labkit.experiments.fork import fork as write_fork

    made = write_fork(parent, at, changes, path, trust=trust)
    lineage = read_lineage(made)
    assert lineage is not None
    changed = lineage.describe() or "the same settings"
    print(f"{made.path} is {parent.name} up to step {at}, and then goes on with {changed}")
    print(f"to go on: labkit resume {shlex.quote(str(made.path))}")
    return 0
