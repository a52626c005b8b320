"""Names of data sets: labkit's own, and those that people give to theirs."""

import re
import unicodedata

from labkit.errors import InputError

__all__ = ["BUILT_IN", "checked_name", "is_own"]

BUILT_IN = ("cifar10", "shapes", "shapes_multilabel")
_RESERVED = ("auto", "downloads", *BUILT_IN)  # downloads is a folder beside the data sets
_NAME = re.compile(r"[^\W_][\w.-]{0,63}")  # a folder of that name is made


def is_own(name: str) -> bool:
    """Return whether a data set is one that somebody made of pictures of their own."""
    return name not in _RESERVED


def checked_name(name: str, flag: str = "--name") -> str:
    """Return the name of somebody's own data set, with each accented letter as one character.

    Raises:
        InputError: it is not a name of letters (of any script), digits, ``.``, ``_`` and ``-``, or it is
            taken.
    """
    composed = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(composed):
        raise InputError(
            f"{flag} is {name!r}; allowed: up to 64 letters, digits, dots, dashes and underscores, a letter "
            "or digit first"
        )
    if composed.casefold() in _RESERVED:
        raise InputError(f"{flag} is {name!r}, which labkit uses itself; give another name")
    return composed
