"""What the command line is made of: a parser with one-line errors, and flags from the configuration's fields.

The standard library's argparse: booleans take both forms (``--no-x`` and ``--x False``).
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from labkit.config import Config, fields_by_name
from labkit.config.fields import FieldInfo, unknown_name_error
from labkit.config.presets import preset_values
from labkit.errors import InputError
from labkit.home import LOCAL_PATH, is_local_path

__all__ = ["Parser", "add_field", "config_of", "local_path", "seconds", "typed", "whole_number"]


class Parser(argparse.ArgumentParser):
    """Errors in one line, with the nearest known flag; exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"labkit: error: {message} (see {self.prog} --help)\n")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [flag for action in known.parser._actions for flag in action.option_strings]
            raise unknown_name_error("argument", unknown[0].split("=")[0], sorted(flags))
        return known


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
                parser.error(f"{option_string} is {values!r}; allowed: True or False")
            value = _BOOLEAN_WORDS[values.lower()]
        negative = (option_string or "").startswith("--no-")
        setattr(namespace, self.dest, value != negative)


def add_field(parser: argparse.ArgumentParser, info: FieldInfo) -> None:
    default = "none" if info.default is None else info.default
    help = f"{info.help} (default: {default})".replace("%", "%%")
    if info.type is bool:
        parser.add_argument(info.flag, dest=info.name, action=_Boolean, default=argparse.SUPPRESS, help=help)
        return
    metavar = {int: "N", float: "X", str: "TEXT"}[info.type]
    if info.choices:
        metavar = "{" + ",".join(str(choice) for choice in info.choices) + "}"
    parser.add_argument(
        info.flag,
        dest=info.name,
        metavar=metavar,
        default=argparse.SUPPRESS,
        help=help,
    )


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


def config_of(options: argparse.Namespace) -> Config:
    """Return the configuration of a preset, where one is named, and of the flags that were given."""
    fields = fields_by_name()
    given = {name: typed(fields[name], value) for name, value in vars(options).items() if name in fields}
    preset = {} if options.preset is None else preset_values(options.preset)
    return Config.from_flat({**preset, **given})
