"""``labkit stop``, ``resume``, ``rename``, ``note``, ``delete``, ``restore``: what is done with a run."""

import argparse
import dataclasses
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import home
from labkit.cluster.continued import local_cluster_command, tasks_flag, tasks_of
from labkit.commands import Run
from labkit.commands.terminal.arguments import (
    Parser,
    add_hidden_fields,
    add_trust,
    local_path,
    seconds,
)
from labkit.config import fields_by_name
from labkit.errors import InputError
from labkit.parts.trust import check_trust, digest_of, files_of, is_accepted
from labkit.run_directory import RunDirectory, Status, list_runs
from labkit.run_directory.find import COMPARISONS, find_run, known_runs, remember
from labkit.run_directory.lineage import read_lineage, write_lineage
from labkit.run_directory.notes import Notes, change_notes, read_notes
from labkit.run_directory.stop import (
    LOCKS,
    ask_to_stop,
    forget_request,
    refuse_elsewhere,
    take_locks,
    training_process,
)
from labkit.run_directory.trash import list_trash, move_to_trash, restore

if TYPE_CHECKING:
    from labkit.config import Config
    from labkit.config.fields import FieldInfo

__all__ = [
    "declare_delete",
    "declare_note",
    "declare_rename",
    "declare_restore",
    "declare_resume",
    "declare_stop",
]


def _add_run(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")


# ---- stop ----------------------------------------------------------------------------------------------


def declare_stop(parser: Parser) -> Run:
    """Declare the flags of ``labkit stop``."""
    _add_run(parser)
    parser.add_argument(
        "--wait-seconds",
        type=seconds,
        default=120.0,
        metavar="X",
        help="Longest time to wait for the training to save and end. Default: 120.",
    )
    return _stop


def _stop(options: argparse.Namespace) -> int:
    """Ask a training to save and stop. Returns 0 when it has, 1 where that takes too long."""
    run = RunDirectory(find_run(options.run))
    process = training_process(run)
    if process is None:
        status = run.read_status()
        refuse_elsewhere(run, "stop")
        print(f"{run.name} isn't running: {_standing(status)}")
        return 0
    print(f"{ask_to_stop(run, process)}; waiting up to {options.wait_seconds:g} s", flush=True)
    give_up = time.monotonic() + options.wait_seconds
    while training_process(run, process) is not None:
        if time.monotonic() >= give_up:
            print(f"process {process} still trains {run.name}; labkit stop {options.run} waits again")
            return 1
        time.sleep(0.1)
    forget_request(run)
    status = run.read_status()
    print(f"{run.name}: {_standing(status)}{_hint(run, status, options.run)}")
    return 0


def _hint(run: RunDirectory, status: Status | None, name: str) -> str:
    """Return how to continue a run that was stopped, or why that can't be told."""
    if status and status.state == "finished":
        return ""
    from labkit.config.recorded import recorded_config

    try:
        config = recorded_config(run).replace({"job_dir": str(run.path)})
    except InputError as error:
        return f"; {error}"
    words = _how_a_cluster_continues(run, config) if _consented(config) else None
    return f"; labkit resume {name} continues it" if words is None else f"; to continue, {words}"


def _consented(config: "Config") -> bool:
    """Return whether a command with this configuration may be shown, to be pasted."""
    try:
        return is_accepted(config, files_of(config))
    except InputError:  # a file of code that isn't here
        return False


def _standing(status: Status | None) -> str:
    if status is None:
        return "it has no readable status"
    return f"{status.liveness()} at step {status.step} of {status.total_steps}"


# ---- resume --------------------------------------------------------------------------------------------


def declare_resume(parser: Parser) -> Run:
    """Declare the flags of ``labkit resume``."""
    _add_run(parser)
    parser.epilog = (
        "A run is resumed with its own settings; labkit fork changes them, the number of steps too."
    )
    parser.add_argument(
        "--data-dir", type=local_path, metavar="DIR", help="Folder of prepared data sets. Default: the run's."
    )
    add_trust(parser)
    add_hidden_fields(parser, _fixed_settings().values())  # to say how they are changed
    return _resume


def _fixed_settings() -> "dict[str, FieldInfo]":
    return {name: info for name, info in fields_by_name().items() if name != "data_dir"}


def _resume(options: argparse.Namespace) -> int:
    """Train a run to its end with the configuration that it was started with. Returns the exit code."""
    from labkit.commands.train import train_as
    from labkit.config.recorded import recorded_config
    from labkit.training.place import fork_command

    run = RunDirectory(find_run(options.run))
    config = recorded_config(run).replace({"job_dir": str(run.path)})
    status = run.read_status()
    step = status.step if status else 0
    fixed = _fixed_settings()
    if changed := {name: value for name, value in vars(options).items() if name in fixed}:
        flags = ", ".join(fixed[name].flag for name in changed)
        if changed.pop("epochs", None) is not None:
            changed["train_steps"] = "STEPS"  # in which the length of a fork is counted
        way_out = fork_command(run, step, **changed) if step else "start it anew with labkit train"
        raise InputError(f"{flags} can't be changed in a run; to go on from it with others: {way_out}")
    if status and status.state == "finished":
        more = fork_command(run, step, train_steps=2 * step)
        print(f"nothing left to do: {run.name} is finished at step {step}; for more steps: {more}")
        return 0
    process = training_process(run)
    if process is not None:
        raise InputError(f"{run.name} is running in process {process}; labkit stop {options.run} stops it")
    refuse_elsewhere(run, "resume")
    files = files_of(config)
    check_trust(run, config, files, trust=options.trust)
    if (words := _how_a_cluster_continues(run, config)) is not None:
        raise InputError(f"{run.name} was trained by a cluster; {words}")
    from labkit.data.of_run import data_dir_of_run

    folder, note = data_dir_of_run(run, config, options.data_dir)
    if note:
        print(note, flush=True)
    config = config.replace({"data_dir": folder})
    return train_as(None, config, overwrite=False, approved=digest_of(files))


def _how_a_cluster_continues(run: RunDirectory, config: "Config") -> str | None:
    """Return how to continue a run that a cluster has trained; None for a run of one process."""
    if flag := tasks_flag(config):
        return f"start each of its tasks again with the command that started it (it has {flag})"
    command = local_cluster_command(run, config, tasks_of(run))
    if not command:
        return None
    return f"submit its job again, or continue it on this machine with: {shlex.join(command)}"


# ---- rename --------------------------------------------------------------------------------------------


def declare_rename(parser: Parser) -> Run:
    """Declare the flags of ``labkit rename``."""
    _add_run(parser)
    parser.add_argument("new", metavar="NEW", help="The new name; the run stays in its folder.")
    return _rename


def _rename(options: argparse.Namespace) -> int:
    """Rename the directory of a run, and the parent in what was forked from it. Returns 0."""
    run, name = RunDirectory(find_run(options.run)), options.new
    new = RunDirectory(run.path.with_name(name) if _is_name(name) else run.path)
    if new.path == run.path:
        raise InputError(
            f"NEW is {name!r}; allowed: another name than {run.name}, without /, . or - in front"
        )
    if os.path.lexists(new.path):
        raise InputError(f"{new.path} is there already; give another name")
    folders = list(run.path.parents)[:2]
    if found := [folder for folder in folders if any((folder / file).exists() for file in COMPARISONS)]:
        raise InputError(
            f"{run.name} belongs to {found[0]}, which finds its runs by their names; it keeps its name"
        )
    refuse_elsewhere(run, "stop")
    locks = take_locks(run)
    if not locks:
        raise InputError(f"{run.name} is running; labkit stop {options.run} stops it")
    others = {one.path: one for one in (*list_runs(run.path.parent), *known_runs())}
    try:
        os.rename(run.path, new.path)
    finally:
        for lock in locks:
            lock.release()
    remember(new)
    print(f"renamed {run.name} to {new.path}")
    for other in others.values():
        for line in _still_naming(other, run, new):
            print(line)
    return 0


def _is_name(name: str) -> bool:
    return "/" not in name and not name.startswith((".", "-")) and name.isprintable() and bool(name.strip())


def _still_naming(other: RunDirectory, run: RunDirectory, new: RunDirectory) -> Iterator[str]:
    """Let ``other`` name ``new`` as its parent in place of ``run``; yield what names ``run`` and stays."""
    if other.path == run.path:
        other = new
    lineage = read_lineage(other)
    if lineage is not None and Path(lineage.parent) == run.path:
        write_lineage(other, dataclasses.replace(lineage, parent=str(new.path)))
        yield f"{other.name}, a fork of it, names its new directory"
    try:
        start = str(other.read_config().get("transfer", {}).get("start_from"))
    except (InputError, AttributeError):
        start = ""
    if start in (run.name, str(run.path)):
        yield f"note: {other.name} records that it started from {start}, its name until now"
    if re.search(rf"(?<![\w-]){re.escape(run.name)}(?![\w-])", read_notes(other).note):
        yield f"note: the note on {other.name} names {run.name}; labkit note {other.name} --text changes it"


# ---- delete --------------------------------------------------------------------------------------------


def declare_delete(parser: Parser) -> Run:
    """Declare the flags of ``labkit delete``."""
    _add_run(parser)
    parser.add_argument("--yes", action="store_true", help="Deletes the run without asking.")
    parser.add_argument(
        "--trash",
        action="store_true",
        help="Moves the run to the folder .trash beside it, from where labkit restore brings it back.",
    )
    return _delete


def _delete(options: argparse.Namespace) -> int:
    """Delete what a run wrote, after a question. Returns 0, or 1 where the answer is no."""
    from labkit.run_directory.disk import discard

    run = RunDirectory(find_run(options.run))
    if options.trash:
        trashed = move_to_trash(run, [run.path.parent])
        print(
            f"moved {run.name} to {trashed.path}; labkit restore {shlex.quote(str(run.path))} brings it back"
        )
        return 0
    status = run.read_status()
    refuse_elsewhere(run, "delete")
    locks = take_locks(run)
    if not locks:
        raise InputError(f"{run.name} is running; labkit stop {options.run} stops it")
    try:
        if not options.yes and not _confirmed(run, status):
            print("nothing was deleted")
            return 1
        discard(run)
        run.notes_path.unlink(missing_ok=True)
        _remove_empty(run)
    finally:
        for lock in locks:
            lock.release()
    left = sorted(path.name for path in run.path.iterdir()) if run.path.is_dir() else []
    kept = f"; kept {', '.join(left)} in {run.path}, which the training didn't write" if left else ""
    print(f"deleted {run.name}{kept}")
    return 0


def _confirmed(run: RunDirectory, status: Status | None) -> bool:
    """Ask whether the run shall be deleted. Raises InputError where nobody can be asked."""
    files = [path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print(f"{run.path}: {_standing(status)}, {len(files)} files, {size:.1f} MiB")
    if not sys.stdin.isatty():
        raise InputError(
            "labkit delete asks before it deletes, but there is no terminal to ask on; add --yes"
        )
    try:
        return input("delete this run? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _remove_empty(run: RunDirectory) -> None:
    """Remove locks, unfinished files, and then each of the run's folders that is empty."""
    for path in (*(run.path / name for name in LOCKS), run.stop_path, *run.path.glob(".*.tmp")):
        if path.is_file():
            path.unlink()
    for folder in (run.events_path, run.checkpoints_path, run.path):
        try:
            folder.rmdir()
        except OSError:  # something that the run didn't write is in it
            continue


# ---- note and restore --------------------------------------------------------------------------------


def declare_note(parser: Parser) -> Run:
    """Declare the flags of ``labkit note``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="Adds a tag. May be repeated."
    )
    parser.add_argument(
        "--remove-tag", action="append", default=[], metavar="TAG", help="Removes a tag. May be repeated."
    )
    parser.add_argument("--text", metavar="TEXT", help="Replaces the note; an empty text removes it.")
    archived = parser.add_mutually_exclusive_group()
    archived.add_argument(
        "--archive",
        dest="archived",
        action="store_const",
        const=True,
        help="Archives the run: lists leave it out, its files stay.",
    )
    archived.add_argument(
        "--unarchive", dest="archived", action="store_const", const=False, help="Lists the run again."
    )
    return _note


def _note(options: argparse.Namespace) -> int:
    """Change what is noted about a run, and print it. Returns 0. Raises InputError beyond the limits."""
    run = RunDirectory(find_run(options.run))
    if missing := [tag for tag in options.remove_tag if tag not in read_notes(run).tags]:
        raise InputError(f"{run.name} has no tag {missing[0]!r}; its tags: {_tags(read_notes(run))}")
    notes = change_notes(
        run, add=options.tag, remove=options.remove_tag, note=options.text, archived=options.archived
    )
    print(f"tags      {_tags(notes)}")
    print(f"note      {notes.note or 'none'}")
    print(f"archived  {'yes' if notes.archived else 'no'}")
    return 0


def _tags(notes: Notes) -> str:
    return ", ".join(notes.tags) or "none"


def declare_restore(parser: Parser) -> Run:
    """Declare the flags of ``labkit restore``."""
    parser.add_argument("run", metavar="RUN", help="The run's name or directory before it was moved.")
    return _restore


def _restore(options: argparse.Namespace) -> int:
    """Move the run of that name that was last moved to the trash back. Raises InputError if there is none."""
    given = Path(os.path.expanduser(options.run))
    folder = given.absolute().parent if len(given.parts) > 1 else home.runs_home()
    trashed = list_trash(folder)
    found = [one for one in trashed if one.name == given.name or one.path.name == given.name]
    if not found:
        names = ", ".join(dict.fromkeys(one.name for one in trashed)) or "nothing"
        raise InputError(f"no run {given.name!r} in the trash of {folder}, which holds {names}")
    run = restore(found[0])
    print(f"restored {run.path}")
    return 0
