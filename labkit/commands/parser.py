"""The standard library's argparse with one-line errors, other names of flags, and help in two sizes.

Underscores stand for dashes. A ``Boolean`` takes both forms, ``--no-x`` and ``--x False``.
"""

import argparse
import re
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from labkit.config.fields import GROUPS
from labkit.config.spellings import INSTEAD, unknown_setting_error
from labkit.errors import InputError, nearest


class Parser(argparse.ArgumentParser):
    """A parser whose errors are InputErrors, with the nearest known flag.

    Attributes:
        aliases: other names of flags.
        takes_rest: whether words may follow ``--``.
        takes_settings: whether it has the flags of a training.
        details: what ``--help-all`` alone shows.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **settings})
        self.aliases: dict[str, str] = {}
        self.takes_rest = False
        self.takes_settings = False
        self.details: list[argparse.Action] = []
        self.shows_details = False

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; ``rest`` holds what stands behind ``--``. Raises InputError."""
        own, rest = list(arguments), []
        if self.takes_rest:
            mark = "--" if "--" in own else "train"
            split = own.index(mark) if mark in own else len(own)
            own, rest = own[:split], own[split:]
            rest = rest[1:] if mark == "--" else rest
        old_names: set[str] = set()
        options, left = self.parse_known_args(self._spelled(own, old_names))
        if left:
            flags = [flag for flag in ("--images", "--dataset") if flag in self._option_string_actions]
            hint = (
                f"; write {' or '.join(f'{flag} {shlex.quote(left[0])}' for flag in flags)}" if flags else ""
            )
            self.error(f"unexpected argument {left[0]!r}{hint}")
        options.rest, options.old_names = rest, old_names
        return options

    def _spelled(self, arguments: list[str], old_names: set[str]) -> list[str]:
        """Return ``arguments`` with this parser's names of flags; note in ``old_names`` the aliases."""
        spelled: list[str] = []
        for index, argument in enumerate(arguments):
            if argument == "--":
                return [*spelled, *arguments[index:]]
            given, equals, value = argument.partition("=")
            if re.match(r"-[A-Za-z]", given) and given[:2] not in self._option_string_actions:
                raise self._unknown(given, "-" + given.replace("_", "-"))
            if given.startswith("--") and " " not in given:
                flag = given.replace("_", "-")
                if flag in self.aliases and flag not in self._option_string_actions:
                    old_names.add(flag)
                    flag = self.aliases[flag]
                if flag not in self._option_string_actions:
                    raise self._unknown(given, flag)
                if value == "--":  # which argparse takes for the end of the flags
                    raise InputError(f"{given} is '--'; allowed: any other text")
                argument = flag + equals + value
            spelled.append(argument)
        return spelled

    def _unknown(self, given: str, flag: str) -> InputError:
        """Return the error for ``flag``, which this parser doesn't have; ``given`` is how it was written."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if flag in self.aliases or flag in known:  # with one dash
            return InputError(f"unknown argument {given!r}; write {self.aliases.get(flag, flag)}")
        if self.takes_settings or flag in INSTEAD:
            return unknown_setting_error("argument", given, known, self.aliases)
        near = nearest(flag, known)
        hint = f"did you mean {near!r}?" if near else f"see {self.prog} --help"
        return InputError(f"unknown argument {given!r}; {hint}")

    def format_help(self) -> str:
        if not self.shows_details:
            for action in self.details:  # the process ends when the help is shown
                action.help = argparse.SUPPRESS
            if self.details:
                groups = "\n".join(f"  {name:<14}{text}" for name, text in GROUPS.items())
                self.epilog = f"{self.prog} --help-all shows the other flags, in these groups:\n{groups}"
        return super().format_help()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 110) - 2
        super().__init__(prog, max_help_position=30, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)  # a flag stays whole

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, Boolean):
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)


class HelpAll(argparse.Action):
    """``--help-all``: the help with ``details``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.shows_details = True
        parser.print_help()
        parser.exit()


_BOOLEAN_WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


class Boolean(argparse.Action):
    """``--flag``, ``--no-flag``, ``--flag True``, ``--flag=False``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        negated = ["--no-" + flag.removeprefix("--") for flag in option_strings]
        super().__init__([*option_strings, *negated], dest, nargs="?", metavar="True|False", **kwargs)

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        value = True
        if values is not None:
            if values.lower() not in _BOOLEAN_WORDS:
                raise InputError(f"{option_string} is {values!r}; allowed: True or False")
            value = _BOOLEAN_WORDS[values.lower()]
        negative = (option_string or "").startswith("--no-")
        setattr(namespace, self.dest, value != negative)
