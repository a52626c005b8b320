"""Formulas over the metrics of a run, such as ``train/loss - validation/loss``: read, and computed by step.

Python's ``ast`` reads them after each name of a metric was replaced by a plain one. Python itself evaluates
nothing, and all numbers are float64.
"""

import ast
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from app.charts.store import Curve, Snapshot
from labkit.errors import InputError, nearest, short
from labkit.plurals import listed
from labkit.run_directory.columns import Floats

MOST = 12  # formulas of a page
LONGEST = 300  # characters of one

OPERATORS: dict[type, Callable[..., Floats]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
    ast.USub: np.negative, ast.UAdd: np.positive,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "log": np.log, "log10": np.log10, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
SO_FAR = {"min": np.fmin.accumulate, "max": np.fmax.accumulate}  # of one value alone
ALLOWED = f"allowed: names of metrics, numbers, + - * / ** ( ) and {', '.join(FUNCTIONS)}"
NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w)"


class Found(NamedTuple):
    """The curve of a formula, the split of its densest one, and why there is no curve, in a sentence."""

    curve: Curve
    split: str
    why_not: str = ""


def found(metrics: Snapshot, text: str) -> Found:
    """Return what a formula gives. It is computed once for each snapshot.

    The curve has the steps of the one with the most points. The others count with their last value up to
    each; steps before the first value of one are left out.
    """
    return metrics.memo.get(("formula", text), lambda: _found(metrics, text))


def _found(metrics: Snapshot, text: str) -> Found:
    whole = metrics.full_names()
    known = {name: (split, name) for split, name in reversed(whole.values())} | whole  # the training's first
    try:
        tree, names = _parsed(text, tuple(known))
    except InputError as error:
        return Found(Curve(*[np.empty(0)] * 4), "train", str(error))
    curves = [metrics.curve(*known[name]) for name in names]
    place = max(range(len(curves)), key=lambda place: len(curves[place]))
    densest = curves[place]
    there, values = np.ones(len(densest), bool), []
    for curve in curves:
        if curve.step is densest.step:
            values.append(curve.y)
            continue
        last = curve.latest(densest.step)
        there &= last >= 0
        values.append(curve.y[last])
    with np.errstate(all="ignore"):
        y = _value(tree, [value[there] for value in values])
    curve = Curve(densest.step[there], densest.epoch[there], densest.wall_time[there], y)
    return Found(curve, known[names[place]][0])


@lru_cache(maxsize=256)
def _parsed(text: str, known: tuple[str, ...]) -> tuple[ast.expr, list[str]]:
    """Return what Python reads, where ``n0`` stands for the first of the names that are returned, too.

    Raises InputError for what can't be read, and for a name that isn't known.
    """
    if len(text) > LONGEST:
        raise InputError(f"the formula {short(text)} has {len(text):,} characters; allowed: {LONGEST}")
    names: dict[str, int] = {}
    longest_first = "|".join(sorted(map(re.escape, known), key=len, reverse=True)) or "(?!)"
    functions = rf"(?:{'|'.join(FUNCTIONS)})(?=\s*\()"
    token = rf"(\s+|[-+*/(),]|{NUMBER}|{functions})|((?:{longest_first})(?!\w))|([\w./]+|.)"

    def plain(found: re.Match[str]) -> str:
        same, name, other = found.groups()
        if other:
            near, there = nearest(other, known), listed([one for one in known if "/" in one]) or "none"
            raise InputError(
                f"the formula {short(text)} has {short(other)}, which the run doesn't have so far; "
                f"{f'did you mean {near}? ' if near else ''}names that it has: {there}"
            )
        return same or f"n{names.setdefault(name, len(names))}"

    try:
        tree = ast.parse(re.sub(token, plain, text, flags=re.DOTALL).strip(), mode="eval").body
        _value(tree, [np.zeros(0)] * len(names))
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"the formula {short(text)} can't be read; {ALLOWED}") from None
    if not names:
        raise InputError(f"the formula {short(text)} names no metric; {ALLOWED}")
    return tree, list(names)


def _value(node: ast.expr, values: Sequence[Floats]) -> Floats:
    """Return what a formula gives, [n], where ``values`` stand for its names.

    Raises SyntaxError for what is no formula.
    """
    match node:
        case ast.Constant(value=int() | float() as number):
            return np.full(len(values[0]) if values else 0, float(number))
        case ast.Name(id=name) if name not in FUNCTIONS:
            return values[int(name[1:])]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(operand, values))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if name in FUNCTIONS:
            return SO_FAR.get(name, FUNCTIONS[name])(_value(one, values))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as several, keywords=[]) if name in SO_FAR:
            return reduce(FUNCTIONS[name], [_value(one, values) for one in several])
    raise SyntaxError
