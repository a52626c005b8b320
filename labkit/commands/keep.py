"""``labkit note`` and ``labkit restore``: what people keep of their runs."""

import argparse
from pathlib import Path

from labkit import home
from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run
from labkit.run_directory.notes import Notes, change_notes, read_notes
from labkit.run_directory.trash import list_trash, restore

__all__ = ["declare_note", "declare_restore"]


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
    given = Path(options.run).expanduser()
    folder = given.absolute().parent if len(given.parts) > 1 else home.runs_home()
    trashed = list_trash(folder)
    found = [one for one in trashed if one.name == given.name or one.path.name == given.name]
    if not found:
        names = ", ".join(dict.fromkeys(one.name for one in trashed)) or "nothing"
        raise InputError(f"no run {given.name!r} in the trash of {folder}, which holds {names}")
    run = restore(found[0])
    print(f"restored {run.path}")
    return 0
