"""``labkit rename``, ``note``, ``delete``, ``restore``: what is done with a run that isn't training."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

from labkit import home
from labkit.commands.flags import Flag, RunName
from labkit.commands.resume import standing
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.disk import discard
from labkit.run_directory.find import find_run, remembered, rename_run
from labkit.run_directory.notes import Notes, change_notes, read_notes
from labkit.run_directory.stop import LOCKS, idle, list_trash, move_to_trash
from labkit.run_directory.stop import restore as restore_from_trash
from labkit.run_directory.summary import Summaries

# ---- rename --------------------------------------------------------------------------------------------


def rename(run: RunName, new: str) -> int:
    """Rename the directory of a run, and the parent in what was forked from it. Returns 0.

    Args:
        new: The new name; the run stays in its folder.
    """
    old = RunDirectory(find_run(run))
    renamed, lines = rename_run(old, new)
    print(f"renamed {old.name} to {renamed.path}")
    if old.path.parent == home.runs_home() and _NAMED_BY_SETTINGS.search(old.name):
        print(
            f"note: the same labkit train without --job-dir starts a new run, {old.name}; labkit resume "
            f"{shlex.quote(renamed.name)} goes on with this one"
        )
    for line in lines:
        print(line)
    return 0


_NAMED_BY_SETTINGS = re.compile(r"-[0-9a-f]{8}(-|$)")  # as labkit train names a run that nobody named


# ---- delete --------------------------------------------------------------------------------------------


def delete(run: RunName, *, yes: bool = False, trash: bool = False) -> int:
    """Delete what a run wrote, after a question. Returns 0, or 1 where the answer is no.

    Args:
        yes: Deletes the run without asking.
        trash: Moves the run to the folder .trash beside it, from where labkit restore brings it back.
    """
    found = RunDirectory(find_run(run))
    if trash:
        trashed = move_to_trash(found, [found.path.parent])
        way_back = f"labkit restore {shlex.quote(str(found.path))}"
        print(f"moved {found.name} to {trashed.path}; {way_back} brings it back")
        return 0
    status = found.read_status()
    with idle(found, "delete"):
        if not yes and not _confirmed(found, status):
            print("nothing was deleted")
            return 1
        discard(found)
        found.notes_path.unlink(missing_ok=True)
        _remove_empty(found)
    left = sorted(path.name for path in found.path.iterdir()) if found.path.is_dir() else []
    kept = f"; kept {', '.join(left)} in {found.path}, which the training didn't write" if left else ""
    print(f"deleted {found.name}{kept}")
    return 0


def _confirmed(run: RunDirectory, status: Status | None) -> bool:
    """Ask whether the run shall be deleted. Raises InputError where nobody can be asked."""
    files = [path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print(f"{run.path}: {standing(status)}, {len(files)} files, {size:.1f} MiB")
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


def note(
    run: RunName,
    step: Annotated[int | None, Flag(metavar="STEP")] = None,
    step_text: Annotated[str | None, Flag(metavar="TEXT")] = None,
    /,
    *,
    tag: tuple[str, ...] = (),
    remove_tag: Annotated[tuple[str, ...], Flag(metavar="TAG")] = (),
    text: str | None = None,
    archive: bool = False,
    unarchive: bool = False,
) -> int:
    """Change what is noted about a run or on a step, and print it. Returns 0.

    Raises InputError beyond the limits, and for a note on a step that the run hasn't made.

    Args:
        step: Step to write a note on, one that the run has made. The note stands on the charts.
        step_text: The note on the step; an empty text removes it.
        tag: Adds a tag. May be repeated.
        remove_tag: Removes a tag. May be repeated.
        text: Replaces the note; an empty text removes it.
        archive: Archives the run: lists leave it out, its files stay.
        unarchive: Lists the run again.
    """
    found = RunDirectory(find_run(run))
    if archive and unarchive:
        raise InputError("--archive and --unarchive contradict each other; leave one of them out")
    if missing := [name for name in remove_tag if name not in read_notes(found).tags]:
        raise InputError(f"{found.name} has no tag {missing[0]!r}; its tags: {_tags(read_notes(found))}")
    if step is not None and step_text is None:
        raise InputError(
            f"STEP is {step}, without a text; write labkit note {shlex.quote(run)} {step} 'what happened'"
        )
    if step is not None and step_text and step > (last := Summaries(describe).of([found])[0].step or 0):
        raise InputError(f"STEP is {step}; allowed: up to {last}, the last step of {found.name} so far")
    archived = archive if archive or unarchive else None
    at_step = None if step is None else (step, step_text or "")
    notes = change_notes(found, add=tag, remove=remove_tag, note=text, archived=archived, at_step=at_step)
    print(f"tags      {_tags(notes)}")
    print(f"note      {notes.note or 'none'}")
    print(f"archived  {'yes' if notes.archived else 'no'}")
    for at, words in notes.steps:
        print(f"step {at}: {words}")
    return 0


def _tags(notes: Notes) -> str:
    return ", ".join(notes.tags) or "none"


def restore(run: Annotated[str, Flag(metavar="RUN")]) -> int:
    """Move the run of that name that was last moved to the trash back. Raises InputError if there is none.

    Args:
        run: The run's name or directory before it was moved.
    """
    given = Path(os.path.expanduser(run)).absolute()
    elsewhere = [known.path.parent for known in remembered()]
    folders = [given.parent] if os.sep in run else [given.parent, home.runs_home(), *elsewhere]
    trashed = [one for folder in dict.fromkeys(folders) for one in list_trash(folder)]
    found = [one for one in trashed if one.name == given.name or one.path.name == given.name]
    if not found:
        names = ", ".join(dict.fromkeys(one.name for one in trashed)) or "nothing"
        raise InputError(
            f"no run {given.name!r} in the trash, which holds {names}; for a run of another folder give the "
            "directory that it had"
        )
    print(f"restored {restore_from_trash(found[0]).path}")
    return 0
