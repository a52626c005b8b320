"""Counts and lists in sentences, facts by name, and texts of users on a terminal and in a record."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control characters, marks of direction, half characters, breaks
_SEEN = "\u200c\u200d"  # which join and part letters, and belong to words of Persian and Hindi


def counted(number: int, noun: str) -> str:
    """Return number and noun in agreement: ``1 checkpoint``, ``2 checkpoints``, ``1,000 checkpoints``.

    Args:
        noun: in the singular, such as ``damaged line``; its plural ends in s.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str], most: int = 30) -> str:
    """Return names with commas between them; of more than ``most``, the first and the number of the rest."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def numbers_in_words(values: Iterable[float], names: Iterable[str]) -> str:
    """Return numbers with their names: ``radius 9.81``, or ``width 3.2, height 5``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(names, values, strict=True))


def facts_text(facts: Iterable[tuple[str, str]]) -> str:
    """Return a line for each fact: ``name: value``."""
    return "\n".join(f"{name}: {printable(text)}" for name, text in facts)


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table with a row for each fact, its name and its value. The value is escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left;vertical-align:top'>{name}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts
    )
    return f"<table>{rows}</table>"


def printable(text: str) -> str:
    """Return ``text`` on one line, with escapes for what a terminal would obey in place of showing it.

    A line break becomes ``\\n``, the escape character ``\\x1b``, a mark that turns the direction ``\\u202e``.
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _UNSEEN and character not in _SEEN
        else character
        for character in text
    )


_SECRET = r"(?:[\w-]*(?:token|password|passwd|secret|apikey)|(?:[\w-]*[-_])?(?:pass|pwd|key|auth))s?"
_ADDRESS = re.compile(r"(\w://)(?:\S*@)?([^@\s?#;]*)([?#;]\S*)?")
_VALUE = re.compile(rf"((?:^|[?&-]){_SECRET}=)[^&\s]+", re.IGNORECASE)
_FLAG = re.compile(rf"-{{1,2}}{_SECRET}", re.IGNORECASE)
_WITH_VALUE = re.compile(rf"(-{{1,2}}{_SECRET}=).+", re.IGNORECASE | re.DOTALL)  # spaces and all


def _bare(found: re.Match[str]) -> str:
    user = "***@" if "@" in found[0] else ""
    return f"{found[1]}{user}{found[2]}{found[3][0] + '***' if found[3] else ''}"


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, or an address, with ``***`` for passwords and tokens.

    They are the user of an address and what follows its path, and the value of a flag or variable whose name
    ends with *token*, *password*, *secret* or *apikey*, or with *pass*, *key* or *auth* as a word of its own.
    """
    clean: list[str] = []
    follows = False
    for word in words:
        hidden = _WITH_VALUE.sub(r"\1***", _VALUE.sub(r"\1***", _ADDRESS.sub(_bare, word)))
        clean.append("***" if follows and not word.startswith("--") else hidden)
        follows = _FLAG.fullmatch(word) is not None
    return clean
