"""Parsers of the command line: one-line errors, flags from the configuration's fields, older spellings.

The standard library's argparse. Booleans take both forms (``--no-x`` and ``--x False``), underscores
stand for dashes.
"""

import argparse
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from labkit.config import Config, by_field, fields_by_name
from labkit.config.fields import GROUPS, FieldInfo
from labkit.config.spellings import ALIASES, INSTEAD, unknown_setting_error
from labkit.data.recipe import requested_values
from labkit.errors import InputError, nearest
from labkit.home import LOCAL_PATH, is_local_path

__all__ = [
    "Parser",
    "add_field",
    "add_hidden_fields",
    "add_training_flags",
    "add_trust",
    "config_of",
    "local_path",
    "seconds",
    "settings_of",
    "training_of",
    "typed",
    "whole_number",
]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are InputErrors, with the nearest known flag.

    ``takes_training``: a training, ``-- train …``, stands behind the flags; ``training_of`` returns it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **settings})
        self.aliases: dict[str, str] = {}
        self.takes_rest = False
        self.takes_settings = False  # of a training
        self.details: list[argparse.Action] = []  # shown by --help-all alone
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
        if isinstance(action, _Boolean):
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.shows_details = True
        parser.print_help()
        parser.exit()


_BOOLEAN_WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


class _Boolean(argparse.Action):
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


# ---- flags of labkit train -----------------------------------------------------------------------------


def add_training_flags(parser: Parser) -> None:
    """Declare the flags of ``labkit train``: its own, and one for each field of the configuration."""
    parser.takes_settings = True
    parser.usage = f"{parser.prog} [flags]"
    parser.add_argument("--help-all", nargs=0, action=_HelpAll, help="show all flags, in groups")
    common = parser.add_argument_group("common flags")
    groups = {name: parser.add_argument_group(f"{name}: {text}") for name, text in GROUPS.items()}
    common.add_argument("--preset", metavar="NAME", help="Starts from a named run; see --list-presets.")
    for info in fields_by_name().values():
        action = add_field(parser, info, common if info.common else groups[info.group])
        if not info.common:
            parser.details.append(action)
    common.add_argument(
        "--overwrite", action="store_true", help="Deletes the run in the job directory and starts anew."
    )
    parser.details.append(
        groups["run"].add_argument(
            "--list-presets", action="store_true", help="Shows the named runs and ends."
        )
    )


def add_hidden_fields(parser: Parser, fields: Iterable[FieldInfo]) -> None:
    """Declare flags of ``labkit train`` for another command, whose help refers to that of ``train``."""
    parser.takes_settings = True
    for info in fields:
        add_field(parser, info, parser).help = argparse.SUPPRESS


def add_trust(parser: Parser) -> None:
    """Declare ``--trust``, of the commands that train on from a record."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Runs the Python file that the run's record names, and listens on its address, though this "
        "account hasn't started it so. Read the file first.",
    )


def add_field(parser: Parser, info: FieldInfo, group: Any) -> argparse.Action:
    """Declare the flag of a field in ``group``, and its names in other programs."""
    for alias in info.aliases:
        flag = "--" + alias.replace("_", "-")
        parser.aliases[flag] = info.flag
        if info.type is bool:
            parser.aliases[f"--no-{flag[2:]}"] = f"--no-{info.flag[2:]}"
    help = f"{info.help} Default: {info.default_in_words}.".replace("%", "%%")
    settings: dict[str, Any] = {"dest": info.name, "default": argparse.SUPPRESS, "help": help}
    if info.type is bool:
        return group.add_argument(info.flag, action=_Boolean, **settings)
    metavar = {int: "N", float: "X", str: "TEXT"}[info.type]
    if info.spelled:
        metavar = "NAME"
    if info.choices:
        metavar = "{" + ",".join(str(choice) for choice in info.choices) + "}"
    return group.add_argument(info.flag, metavar=metavar, **settings)


def typed(info: FieldInfo, text: str | bool) -> Any:
    """Convert a flag's text to the field's type; the field itself checks the range."""
    if isinstance(text, bool):
        return text
    if info.optional and text.lower() == "none":
        return None
    try:
        return info.type(text)
    except ValueError:
        raise InputError(f"{info.flag} is {text!r}; allowed: {info.allowed}") from None


def config_of(
    options: argparse.Namespace, *, asynchronous: bool = False, announce: Callable[[str], None] = print
) -> Config:
    """Return the configuration of a preset, where one is named, and of the flags that were given.

    ``asynchronous``: whether it is for a cluster with parameter servers. ``announce``: takes a line.
    """
    given = _given(options)
    for name in ALIASES["train_batch_size"].split():  # by_field refuses it with several GPUs
        if "--" + name.replace("_", "-") in options.old_names:
            given[name] = given.pop("train_batch_size")
            break
    values, recipe = requested_values(options.preset, by_field(given), asynchronous=asynchronous)
    if recipe:
        announce(recipe)
    return Config.from_flat(values)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that flags of a training give, in their types."""
    fields = fields_by_name()
    return {name: typed(fields[name], value) for name, value in vars(options).items() if name in fields}


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields that words such as ``learning_rate=0.01`` give. Raises InputError, as for flags."""
    parser = Parser(prog="labkit train")
    add_training_flags(parser)
    flags = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name.startswith("-"):
            raise InputError(f"--set {word}: write a setting and its value, such as learning_rate=0.01")
        flags.append(f"--{name.replace('_', '-')}={value}")
    return _given(parser.parse_all(flags))


def training_of(options: argparse.Namespace, program: str) -> tuple[Config, bool]:
    """Return the configuration of the training behind ``--``, and whether to overwrite the run."""
    rest = options.rest
    if rest[:1] != ["train"]:
        given = repr(rest[0]) if rest else "nothing"
        raise InputError(f"{given} follows --; write a training command there: {program} -- train --sync")
    parser = Parser(prog="labkit train")
    add_training_flags(parser)
    training = parser.parse_all(rest[1:])
    if training.list_presets:
        raise InputError("--list-presets trains nothing; use it alone: labkit train --list-presets")
    announce = print if program.endswith("local") else lambda line: None  # scripts show the flags themselves
    return config_of(training, asynchronous=options.ps > 0, announce=announce), training.overwrite


# ---- types of flags ------------------------------------------------------------------------------------


def whole_number() -> Any:
    def convert(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number") from None

    return convert


def local_path(text: str) -> str:
    if not is_local_path(text):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {LOCAL_PATH}")
    return text


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number of at least 0")
    return value
