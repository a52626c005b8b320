"""A command's flags, made from the signature and the docstring of its function.

A parameter without a default is a word of the command line, one with a default is a flag; ``*runs`` takes
several words, and ``**flags`` the flags of ``labkit train`` by their names, in the types of their fields. A
parameter's text is its help, and the paragraphs below the docstring's first line end the help.

The parser is the standard library's argparse with one-line errors, other names of flags, and help in two
sizes. Underscores stand for dashes. A ``Boolean`` takes both forms, ``--no-x`` and ``--x False``.
"""

import argparse
import functools
import inspect
import math
import os
import re
import shlex
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from labkit.config import fields_by_name
from labkit.config.fields import GROUPS, FieldInfo
from labkit.config.spellings import ALIASES, INSTEAD, unknown_setting_error
from labkit.errors import InputError, nearest
from labkit.home import LOCAL_PATH, is_local_path


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
            word = shlex.quote(left[0])
            hint = f"; write {' or '.join(f'{flag} {word}' for flag in flags)}" if flags else ""
            if self.takes_settings:
                from labkit.run_directory.find import find_run

                with suppress(InputError):
                    find_run(left[0])
                    hint = f", a run: labkit resume {word} continues it, labkit show {word} has its settings"
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


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., int])


class Flag(dict[str, Any]):
    """What a signature can't say of a parameter: arguments of argparse's ``add_argument``, and these.

    Args:
        flags: in place of the parameter's name, such as ``("-p", "--parameter")``.
        alias: another flag of the same meaning.
        group: of ``GROUPS``, in which ``--help-all`` alone shows it.
        shown: of ``**flags``: whether the help shows them.
        rest: what may stand behind ``--``, in words: the parameter takes it.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]  # as a part of a union needs it


# ---- types ---------------------------------------------------------------------------------------------


def converter(kind: Callable[[str], T], allowed: str, good: Callable[[T], bool] | None = None) -> Any:
    """Return what makes a value of a flag's text; refused is one that isn't ``good``, or isn't of its kind.

    ``allowed``: the values, in words.
    """

    def convert(text: str) -> T:
        with suppress(ValueError):
            value = kind(text)
            if good is None or good(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {allowed}")

    return convert


_local_path = converter(str, LOCAL_PATH, is_local_path)
_seconds = converter(float, "a number of at least 0", lambda value: 0 <= value < math.inf)

_RUN = "Directory of the run, or its name."
_DATA = "Folder of prepared data sets. Default: the run's."
_PRESET = "Starts from a named run (labkit train --list-presets), or from a file NAME.json of labkit search."
_TRUST = (
    "Runs the Python file that the run's record names, and listens on its address, though this account "
    "hasn't started it so. Read the file first."
)
RunName = Annotated[str, Flag(metavar="RUN", help=_RUN)]
LocalPath = Annotated[str, Flag(type=_local_path, metavar="PATH")]
DataDir = Annotated[str, Flag(type=_local_path, metavar="DIR", help=_DATA)]
Seconds = Annotated[float, Flag(type=_seconds, metavar="X")]
Trust = Annotated[bool, Flag(help=_TRUST)]
Preset = Annotated[str | None, Flag(metavar="NAME", help=_PRESET)]
# What stands behind --: a command of labkit, or a training.
Command = Annotated[Sequence[str], Flag(rest="COMMAND [flags]")]
Training = Annotated[Sequence[str], Flag(rest="train [flags of labkit train]")]

_SETTINGS: dict[Any, dict[str, Any]] = {
    bool: {"action": "store_true"},
    int: {"type": converter(int, "a whole number"), "metavar": "N"},
    float: {"type": converter(float, "a number"), "metavar": "X"},
    tuple: {"action": "append"},
    os.PathLike: {"type": _local_path, "metavar": "PATH"},
    Sequence: {"type": lambda text: text.split(",")},
}


def _settings(hint: Any) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for a type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _settings(parts[0]) | {key: value for mark in parts[1:] for key, value in mark.items()}
    if origin in (types.UnionType, typing.Union):
        origins = [typing.get_origin(part) or part for part in parts]
        return _settings(os.PathLike if os.PathLike in origins else parts[0])
    if origin is Literal:
        return {"choices": parts}
    return dict(_SETTINGS.get(origin or hint, {}))


# ---- declaration ---------------------------------------------------------------------------------------


def takes(function: Callable[..., Any], *, leave_out: Sequence[str] = (), **flags: Flag) -> Callable[[F], F]:
    """Let a command have the parameters of a public function, too, which it hands on: ``**given``.

    Parameters that the command has itself, that are functions, and those of ``leave_out`` are no flags.
    ``flags``: what the function's signature can't say of its parameters.
    """

    def mark(command: F) -> F:
        command.takes = (function, leave_out, flags)  # type: ignore[attr-defined]
        return command

    return mark


def _texts(source: Any) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs below the first line of a docstring, and the text of each argument."""
    doc = inspect.getdoc(source) or ""
    body, _, after = doc.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", after)[0]
    entries = re.findall(r"^    (\*{0,2}\w[\w, *]*): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    texts = {
        name.strip(" *"): " ".join(text.split()).replace("``", "")
        for names, text in entries
        for name in names.split(",")
    }
    paragraphs = [" ".join(part.split()) for part in body.split("\n\n")[1:]]
    return [part for part in paragraphs if not part.startswith(("Returns", "Raises"))], texts


def _parameters(command: Callable[..., int]) -> Iterator[tuple[inspect.Parameter, dict[str, Any]]]:
    """Yield each parameter of a command and of what it takes, with its arguments of ``add_argument``."""
    hands_on: tuple[Any, Sequence[str], Mapping[str, Flag]] = getattr(command, "takes", (None, (), {}))
    taken, leave_out, flags = hands_on
    seen = {"given", *leave_out}
    sources: list[Any] = [command, taken] if taken else [command]
    for source in sources:
        hints = typing.get_type_hints(source, include_extras=True)
        texts = _texts(source)[1]
        for name, parameter in inspect.signature(source).parameters.items():
            if name not in seen and typing.get_origin(hints[name]) is not Callable:
                seen.add(name)
                text = {"help": texts[name]} if name in texts else {}
                yield parameter, {"help": None} | _settings(hints[name]) | text | flags.get(name, {})


def declared(prog: str, command: Callable[..., int], description: str = "") -> Parser:
    """Return the parser of a command."""
    parser = Parser(prog=prog, description=description)
    if paragraphs := _texts(command)[0]:
        parser.epilog = "\n\n".join(textwrap.fill(part, 100, break_on_hyphens=False) for part in paragraphs)
    groups: dict[str, Any] = {}
    parameters = list(_parameters(command))
    own = {parameter.name for parameter, _ in parameters}
    if any(settings.pop("shown", False) for _, settings in parameters):
        parser.usage = f"{prog} [flags]"
        help = "show all flags, in groups"
        parser.add_argument("--help-all", nargs=0, action=HelpAll, default=argparse.SUPPRESS, help=help)
        groups[""] = parser.add_argument_group("common flags")
        groups |= {name: parser.add_argument_group(f"{name}: {text}") for name, text in GROUPS.items()}
    for parameter, settings in parameters:
        if parameter.name != "flags":
            _add(parser, groups, parameter, settings)
    if "flags" in own:
        parser.takes_settings = True
        for info in fields_by_name().values():
            if info.name not in own:
                _add_field(parser, info, groups)
    return parser


def _add(parser: Parser, groups: Mapping[str, Any], parameter: inspect.Parameter, settings: Any) -> None:
    """Declare one parameter."""
    name, default = parameter.name, parameter.default
    if "rest" in settings:
        parser.takes_rest = True
        parser.usage = f"{parser.prog} [flags] -- {settings['rest']}"
        return
    group, alias = settings.pop("group", ""), settings.pop("alias", "")
    flags = settings.pop("flags", ("--" + name.replace("_", "-"),))
    required = default is parameter.empty
    if alias:
        parser.aliases[alias] = flags[-1]
    help = settings["help"] or ""
    if not (required or "Default" in help or default is None or default is False or default == ()):
        help += f" Default: {default}."
    settings["help"] = help.replace("%", "%%")
    if parameter.kind is parameter.VAR_POSITIONAL:
        settings = {"nargs": "*"} | settings
    if parameter.kind is parameter.POSITIONAL_ONLY and not required:
        settings |= {"nargs": "?", "default": default}
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY) or (
        required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ):
        parser.add_argument(name, **{"metavar": name.upper()} | settings)
        return
    if settings.get("action") in ("append", "extend"):
        settings["default"] = []
    elif settings.get("action") != "store_true":
        kind = {} if "choices" in settings else {"metavar": "TEXT"}
        settings = kind | settings | {"default": None if required else default, "required": required}
    action = groups.get(group, parser).add_argument(*flags, dest=name, **settings)
    if group:
        parser.details.append(action)


def _add_field(parser: Parser, info: FieldInfo, groups: Mapping[str, Any]) -> None:
    """Declare the flag of a field, and its names in other programs; without ``groups`` the help has none."""
    for alias in info.aliases:
        flag = "--" + alias.replace("_", "-")
        parser.aliases[flag] = info.flag
        if info.type is bool:
            parser.aliases[f"--no-{flag[2:]}"] = f"--no-{info.flag[2:]}"
    settings: dict[str, Any] = {"dest": info.name, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    if groups:
        settings["help"] = f"{info.help} Default: {info.default_in_words}.".replace("%", "%%")
    group = groups.get("" if info.common else info.group, parser)
    if info.type is bool:
        action = group.add_argument(info.flag, action=Boolean, **settings)
    else:
        metavar = "NAME" if info.spelled else {int: "N", float: "X", str: "TEXT"}[info.type]
        metavar = "PATH" if info.is_path else metavar
        if info.choices:
            metavar = "{" + ",".join(str(choice) for choice in info.choices) + "}"
        action = group.add_argument(info.flag, metavar=metavar, **settings)
    if groups and not info.common:
        parser.details.append(action)


# ---- call ----------------------------------------------------------------------------------------------


def parsed(
    prog: str, command: Callable[..., int], words: Sequence[str], description: str = ""
) -> functools.partial[int]:
    """Return the call of a command that words ask for. Raises InputError."""
    options = declared(prog, command, description).parse_all(words)
    values, fields = vars(options), fields_by_name()
    rest, old_names = values.pop("rest"), values.pop("old_names")
    arguments: list[Any] = []
    flags: dict[str, Any] = {}
    for parameter, settings in _parameters(command):
        name = parameter.name
        if name == "flags":
            continue
        value = rest if "rest" in settings else values.pop(name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += value
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            arguments.append(value)
        else:
            flags[name] = value
    flags |= {name: fields[name].from_flag(value) for name, value in values.items()}
    for alias in ALIASES["train_batch_size"].split():  # by_field refuses it with several GPUs
        if "--" + alias.replace("_", "-") in old_names and "train_batch_size" in values:
            flags[alias] = flags.pop("train_batch_size")
            break
    return functools.partial(command, *arguments, **flags)
