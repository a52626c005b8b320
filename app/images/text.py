"""Text of users, such as names of runs and classes, in places where Streamlit reads Markdown."""

import re

__all__ = ["plain", "visible"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^=&])")
# Marks that turn the direction of the text around them, and control characters.
_INVISIBLE = re.compile("[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return ``text`` without marks that turn the direction of the text around them."""
    return _INVISIBLE.sub("�", text)


def plain(text: str) -> str:
    """Return Markdown that shows ``text`` as it is, on one line."""
    text = text.encode(errors="replace").decode()  # names of files may hold what isn't Unicode
    return _SPECIAL.sub(r"\\\1", visible(" ".join(text.split())))
