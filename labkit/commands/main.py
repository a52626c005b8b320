"""The ``labkit`` command: finds the command that is asked for, runs it, and turns errors into exit codes.

Nothing heavy is imported before a command runs.
"""

import functools
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence

from labkit.commands import COMMANDS, GROUPS, INSTEAD
from labkit.errors import DiskFailure, InputError, nearest
from labkit.plurals import printable
from labkit.startup.child import record_failure, record_reason
from labkit.startup.interruption import described
from labkit.startup.quiet_import import leave_out_extras
from labkit.version import VERSION

# Control characters but tab and line break, and marks that turn the direction of a text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 a run failed, 2 bad input, 128 + signal.

    ``arguments``: those of the process by default. A notebook that gives others keeps all of Keras.
    """
    if arguments is None:
        leave_out_extras()
    try:
        code = _main(sys.argv[1:] if arguments is None else list(arguments))
    except SystemExit as end:
        record_failure(end.code)
        raise
    except BaseException:
        record_failure(1)  # what Python ends with
        raise
    record_failure(code)
    return code


def _escape_controls(stream: io.TextIOWrapper) -> None:
    """Let ``stream`` show what a terminal would obey: a run of somebody else may be named so."""
    write = stream.write
    if getattr(write, "escapes", False):
        return

    def escaped(text: str) -> int:
        if _OBEYED.search(text):
            text = "\n".join(map(printable, text.split("\n")))
        return write(text)

    escaped.escapes = True  # type: ignore[attr-defined]
    stream.write = escaped  # type: ignore[method-assign]


def _main(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal's encoding lacks is escaped
            # A pipe gets each line at once, and in order with those of child processes.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
            _escape_controls(stream)
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_overview(list(COMMANDS)))
            return 0
        if arguments[0] == "--version":
            print(f"labkit {VERSION}")
            return 0
        members = [name for name in COMMANDS if name.startswith(arguments[0] + " ")]
        if members and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
            print(_overview(members))
            return 0
        return parse(arguments)()
    except InputError as error:
        return _refuse(printable(str(error)))
    except DiskFailure as error:
        print(f"labkit: failed: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else signal.SIGINT
        print(f"labkit: {described(number)}", file=sys.stderr)
        return 128 + int(number)
    except BrokenPipeError:
        # The reader of our output has gone, as in `labkit runs | head -1`: nothing left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        return _refuse(f"{printable(str(error.filename)[:200])}: {error.strerror}")


def _refuse(sentence: str) -> int:
    record_reason(sentence)
    print(f"labkit: error: {sentence}", file=sys.stderr)
    return 2


def parse(arguments: Sequence[str]) -> functools.partial[int]:
    """Return the call that ``arguments`` ask for: the function of a command, with its parameters."""
    name = _name(arguments)
    # The flags are made from the configuration's fields, which the overview doesn't need.
    from labkit.commands.flags import parsed

    command = COMMANDS[name]
    module = importlib.import_module(command.module, "labkit.commands")
    function = getattr(module, name.replace(" ", "_").replace("-", "_"))
    return parsed(f"labkit {name}", function, arguments[len(name.split()) :], command.help)


def _name(arguments: Sequence[str]) -> str:
    """Return the command that the first word, or the first two, name. Raises InputError with the nearest."""
    for words in (1, 2):
        name = " ".join(arguments[:words]).replace("_", "-")
        if name in COMMANDS:
            return name
    if arguments[0].startswith("-"):
        raise InputError(f"unknown argument {arguments[0]!r} before the command; see labkit --help")
    groups = [name.split()[0] for name in COMMANDS if " " in name]
    given = " ".join(arguments[: 2 if arguments[0] in groups else 1])
    near = INSTEAD.get(given) or nearest(given, [*COMMANDS, *groups])
    if near is None:  # the second word alone, such as labkit prepare
        near = next((name for name in COMMANDS if nearest(given, name.split()[1:])), None)
    hint = f"did you mean {near}?" if near else "see labkit --help"
    raise InputError(f"no command {given!r}; {hint}")


def _overview(names: list[str]) -> str:
    """Return the help on these commands, under their headings where they are of several groups."""
    lines = []
    for heading, group in GROUPS.items():
        shown = [name for name in group if name in names]
        width = max(map(len, shown), default=0) + 2
        lines += [f"\n{heading}:"] if shown else []
        lines += [f"  {name:<{width}}{COMMANDS[name].help}" for name in shown]
    commands = "\n".join(lines)
    return (
        "usage: labkit COMMAND [flags]\n\nUnderstand, run and trust distributed training.\n"
        f"{commands}\n\n"
        "labkit COMMAND --help shows the flags of a command, labkit --version the version."
    )
