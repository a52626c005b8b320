"""Choose runs by words and by conditions such as ``accuracy>0.8``."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from labkit.errors import InputError, unknown_name_error
from labkit.run_directory.summary import RunSummary

# What can be asked for beside the fields of the configuration.
FIELDS = (
    "name", "state", "step", "progress", "accuracy", "best_validation_accuracy", "test_accuracy",
    "training_loss", "examples_per_second", "duration", "age", "dataset", "model", "tag", "note",
)  # fmt: skip
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400}

_CONDITION = re.compile(r"([A-Za-z_]\w*)\s*(!=|>=|<=|=|>|<)\s*(.*)", re.DOTALL)
# What stands between two filters in one text; a value may hold spaces, as in "tag=for the paper".
NEXT_CONDITION = re.compile(r"\s+(?=[A-Za-z_]\w*\s*(?:!=|>=|<=|=|>|<))")
_NUMBER = re.compile(r"([-+.\deE_]+)\s*(%|s|min|h|d)?")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}

Condition = Callable[[RunSummary], bool]


def chosen_runs(
    summaries: Iterable[RunSummary], texts: Iterable[str], aliases: Mapping[str, str] | None = None
) -> list[RunSummary]:
    """Return the runs that all of ``texts`` fit. ``aliases``: other names of settings, with their own.

    A text that isn't ``FIELD=VALUE`` (or with ``!=``, ``>``, ``<``, ``>=``, ``<=``) fits a run that has it in
    its name, state, data set, model, tags or note. Case doesn't matter. A run without the value fits no
    condition but ``!=``.

    Raises InputError for an unknown field, with the nearest known one, and for a limit that isn't a number.
    """
    summaries = list(summaries)
    known = [*FIELDS, *dict.fromkeys(name for summary in summaries for name in summary.values)]
    conditions = [_condition(text, known, {"tags": "tag", **(aliases or {})}) for text in texts]
    return [summary for summary in summaries if all(fits(summary) for fits in conditions)]


def _condition(text: str, known: list[str], aliases: Mapping[str, str]) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        return lambda summary: any(text.lower() in word.lower() for word in _words(summary))
    field, sign, value = found.groups()
    field = field if field in known else aliases.get(field, field)
    if field not in known:
        raise unknown_name_error("field of --filter", field, known)
    if sign in ("=", "!="):
        return lambda summary: _equals(summary, field, value) is (sign == "=")
    limit, order = _limit(text, value), _ORDER[sign]
    return lambda summary: _is_number(it := _value(summary, field)) and order(it, limit)


def _limit(text: str, value: str) -> float:
    """Return the number in ``value``: ``0.8``, ``80%``, or a time such as ``2h``, in seconds."""
    found = _NUMBER.fullmatch(value.strip())
    try:
        number = float(found[1]) if found else float(value)
    except ValueError:
        raise InputError(
            f"the filter {text!r} compares with {value!r}; allowed: a number, such as accuracy>0.8 or age<2h"
        ) from None
    unit = found[2] if found else None
    return number / 100 if unit == "%" else number * TIMES.get(unit or "s", 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equals(summary: RunSummary, field: str, value: str) -> bool:
    if field == "tag":
        return value.lower() in (tag.lower() for tag in summary.notes.tags)
    own = _value(summary, field)
    if str(own).lower() == value.lower():
        return True
    try:
        return _is_number(own) and float(value) == own
    except ValueError:
        return False


def _value(summary: RunSummary, field: str) -> Any:
    if field == "note":
        return summary.notes.note
    return getattr(summary, field) if field in FIELDS and field != "tag" else summary.values.get(field)


def _words(summary: RunSummary) -> list[str]:
    known = (summary.name, summary.state, summary.dataset, summary.model, summary.notes.note)
    return [*(word for word in known if word), *summary.notes.tags]
