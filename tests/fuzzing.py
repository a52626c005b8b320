"""For tests that give arbitrary input: JSON, damage to what is good, and what may come of it."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from labkit.errors import InputError

__all__ = ["as_file", "damaged_bytes", "damaged_json", "json_values", "value_or_line"]

# Also what JSON can hold and few programs expect: numbers without end, lone surrogates, ends of line.
_ODD_NUMBERS = (0, -1, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), -float("inf"), 0.5)
_ODD_TEXTS = ("", "\n", "a\nb", "\ud800", "\0", "\x1b[31m", "x" * 300, "/", "..", "train", "test")
_odd = st.sampled_from((*_ODD_NUMBERS, *_ODD_TEXTS, None, True, [], {}, [1], {"a": 1}))
json_values = st.recursive(
    st.one_of(_odd, st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value within ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in ((*before, key), *_places(one, (*before, key)))]


@st.composite
def damaged_json(draw: st.DrawFn, good: Any) -> Any:
    """Return ``good`` with one to three of its values replaced, removed, wrapped in a list or renamed."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(value)
        if not places:
            return draw(json_values)
        *path, last = draw(st.sampled_from(places))
        holder = value
        for key in path:
            holder = holder[key]
        how = draw(st.sampled_from(("replace", "replace", "replace", "remove", "wrap", "rename")))
        old = holder.pop(last)
        new = {"replace": copy.deepcopy(draw(_odd | json_values)), "wrap": [old]}.get(how, old)
        if how == "remove":
            continue
        if isinstance(holder, list):
            holder.insert(last, new)
        else:
            holder[draw(st.text(max_size=4)) if how == "rename" else last] = new
    return value


@st.composite
def damaged_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Return ``good`` cut off, or with one to eight bytes changed, or with a part removed or repeated."""
    how = draw(st.sampled_from(("cut", "change", "change", "change", "remove", "repeat")))
    at = draw(st.integers(0, len(good) - 1))
    if how == "cut":
        return good[:at]
    if how in ("remove", "repeat"):
        end = min(len(good), at + draw(st.integers(1, 64)))
        return good[:at] + (good[at:end] * 2 if how == "repeat" else b"") + good[end:]
    content = bytearray(good)
    for place in [at, *draw(st.lists(st.integers(0, min(len(good), 400) - 1), max_size=7))]:
        content[place] = draw(st.integers(0, 255))
    return bytes(content)


def as_file(value: Any) -> bytes:
    """Return JSON as it may lie in a file; ``value`` may hold NaN and lone surrogates."""
    return json.dumps(value).encode()


def value_or_line(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return what ``call`` returns, or None and the one line with which it refuses; other errors go on."""
    try:
        return call(), ""
    except InputError as error:
        line = str(error)
    assert line.strip() and len(line.splitlines()) == 1, line
    return None, line
