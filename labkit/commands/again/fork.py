"""``labkit fork``: a run that shares the past of another one."""

import argparse
import shlex

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, add_trust, local_path, settings_of, whole_number
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run
from labkit.run_directory.lineage import read_lineage

__all__ = ["declare_fork"]


def declare_fork(parser: Parser) -> Run:
    """Declare the flags of ``labkit fork``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run to fork, or its name.")
    parser.add_argument(
        "--at", type=whole_number(), required=True, metavar="STEP", help="Last step that both share, from 1."
    )
    parser.add_argument(
        "--set",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="Settings of the fork that differ, named as the flags of labkit train: learning_rate=0.01.",
    )
    parser.add_argument(
        "--job-dir",
        type=local_path,
        metavar="DIR",
        help="Directory of the fork. Default: <run>-fork-<STEP> beside the run.",
    )
    add_trust(parser)
    return _run


def _run(options: argparse.Namespace) -> int:
    """Fork a run. Returns 0. Raises InputError before anything is written."""
    changes = settings_of(options.settings)
    parent = RunDirectory(find_run(options.run))
    given = options.job_dir or parent.path.with_name(f"{parent.name}-fork-{options.at}")
    from labkit.experiments.fork import fork

    made = fork(parent, options.at, changes, expanded(given).absolute(), trust=options.trust)
    lineage = read_lineage(made)
    assert lineage is not None
    changed = lineage.describe() or "the same settings"
    print(f"{made.path} is {parent.name} up to step {options.at}, and then goes on with {changed}")
    print(f"to go on: labkit resume {shlex.quote(str(made.path))}")
    return 0
