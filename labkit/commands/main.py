"""The ``labkit`` command: its parser, its errors and its exit codes; ``labkit.commands`` holds what it does.

Nothing heavy is imported before a command runs.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from labkit import __version__
from labkit.allocator import keep_memory
from labkit.cluster.exit_status import record_failure
from labkit.commands import COMMANDS
from labkit.commands.arguments import Parser, config_of
from labkit.commands.command import Command, CommandGroup
from labkit.config import Config
from labkit.errors import InputError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 a run failed, 2 bad input, 128 + signal."""
    try:
        code = _main(sys.argv[1:] if arguments is None else list(arguments), is_process=arguments is None)
    except SystemExit as end:
        record_failure(end.code)
        raise
    except BaseException:
        record_failure(1)  # what Python ends with
        raise
    record_failure(code)
    return code


def _main(arguments: list[str], *, is_process: bool) -> int:
    try:
        options = _parser().parse_all(arguments)
        if is_process and options.computes:
            keep_memory()
        return options.command(options)
    except InputError as error:
        print(f"labkit: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone, as in `labkit runs | head -1`: nothing left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"labkit: error: {str(error.filename)[:200]}: {error.strerror}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(prog="labkit", description="Understand, run and trust distributed training.")
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    parser.set_defaults(parser=parser, command=_help, computes=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for action in COMMANDS:
        _add(commands, action)
    return parser


def _add(commands: Any, action: Command | CommandGroup) -> None:
    parser = commands.add_parser(action.name, help=action.help, description=action.help, allow_abbrev=False)
    if isinstance(action, CommandGroup):
        parser.set_defaults(parser=parser, command=_help, computes=False)
        actions = parser.add_subparsers(title="actions", metavar="COMMAND")
        for member in action.commands:
            _add(actions, member)
        return
    parser.set_defaults(parser=parser, command=_command(action), computes=action.computes)
    action.add_arguments(parser)
    if action.takes_training:
        parser.usage = f"{parser.prog} [flags] -- train [flags of labkit train]"
        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _command(action: Command) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        given = _training(options.rest, options.parser.prog) if action.takes_training else ()
        return action.run(options, *given)

    return run


def _training(rest: Sequence[str], program: str) -> tuple[Config, bool]:
    """Return the configuration of the training behind ``--``, and whether to overwrite the run."""
    rest = list(rest[1:] if rest[:1] == ["--"] else rest)
    if rest[:1] != ["train"]:
        given = repr(rest[0]) if rest else "nothing"
        raise InputError(f"behind -- stands {given}; allowed: train, such as: {program} -- train --sync")
    options = _parser().parse_all(rest)
    if options.list_presets:
        raise InputError("--list-presets trains nothing; use it alone: labkit train --list-presets")
    return config_of(options), options.overwrite


def _help(options: argparse.Namespace) -> int:
    options.parser.print_help()
    return 0
