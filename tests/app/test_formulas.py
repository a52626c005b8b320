"""Formulas over metrics: what they give, how curves of different steps are joined, what they refuse."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.charts.formulas import LONGEST, found
from app.charts.store import Curve, CurveStore, Snapshot
from labkit.errors import InputError
from tests.app.rows import append, evaluation_row, train_row

# Metrics of the rows below, whose names are the numbers that they have at every step.
VALUES = {"a": 2.0, "b": -3.0, "loss": 0.5, "a/b": 11.0, "loss-ema": 0.25, "5shot": 7.0, "my metric": 13.0}


def curve_of(metrics: Snapshot, text: str) -> tuple[str, Curve]:
    """Return the split and the curve of a formula. Raises InputError where there is none."""
    curve, split, why = found(metrics, text)
    if why:
        assert len(curve) == 0
        raise InputError(why)
    return split, curve


@pytest.fixture(scope="module")
def metrics(tmp_path_factory) -> Snapshot:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    append(path, *(train_row(step, **VALUES) for step in range(1, 11)))
    append(path, *(evaluation_row(step, loss=10.0 * step, accuracy=step / 10) for step in (3, 6)))
    return CurveStore(path).poll()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 2.0),
        ("train/a", 2.0),
        ("a + b * loss", 0.5),
        ("(a + b) * loss", -0.5),
        ("-a ** 2", -4.0),
        ("2 ** 3 ** 2", 512.0),
        ("a - -b", -1.0),
        ("a / b", 2 / -3),
        ("train/a/train/b", 2 / -3),
        ("a/b", 11.0),  # a metric of this name is there
        ("a/loss", 4.0),
        ("a/2", 1.0),
        ("train/a/b", 11.0),
        ("loss-ema", 0.25),
        ("loss - a", -1.5),
        ("loss-a", -1.5),
        ("5shot * 2", 14.0),
        ("my metric + 1.5e1", 28.0),
        ("log(exp(a))", 2.0),
        ("log10(100 * a / a)", 2.0),
        ("sqrt(abs(b) * 3)", 3.0),
        ("min(a, b, loss)", -3.0),
        ("max(a, max(b, 4))", 4.0),
        (" a\t", 2.0),
    ],
)
def test_a_formula_is_computed_as_mathematics_writes_it(metrics, text, value):
    expected = [value] * 10
    text, expected = (f"{text} + 0 * a", expected) if text.startswith("2 **") else (text, expected)
    split, curve = curve_of(metrics, text)
    assert split == "train"
    assert curve.step.tolist() == list(range(1, 11))
    assert curve.y.tolist() == pytest.approx(expected)


def test_the_sparser_curve_counts_with_its_last_value_and_not_before_its_first(metrics):
    split, curve = curve_of(metrics, "validation/loss - train/loss")
    assert split == "train"
    assert curve.step.tolist() == list(range(3, 11))
    assert curve.y.tolist() == [29.5] * 3 + [59.5] * 5
    assert curve.epoch.tolist() == [step / 50 for step in range(3, 11)]
    split, curve = curve_of(metrics, "accuracy * 1")
    assert split == "train", "a metric alone is the training's"
    split, curve = curve_of(metrics, "validation/loss / validation/accuracy")
    assert split == "validation" and curve.step.tolist() == [3, 6] and curve.y.tolist() == [100, 100]


def test_min_and_max_of_one_value_are_the_best_so_far_also_after_nan(tmp_path):
    values = [3.0, math.nan, 5.0, 1.0, 2.0]
    append(tmp_path / "m", *(train_row(step, noise=value) for step, value in enumerate(values, 1)))
    metrics = CurveStore(tmp_path / "m").poll()
    assert curve_of(metrics, "min(noise)")[1].y.tolist() == [3, 3, 3, 1, 1]
    assert curve_of(metrics, "max(noise)")[1].y.tolist() == [3, 3, 5, 5, 5]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a / (a - a)", math.inf),
        ("b / 0", -math.inf),
        ("(a - a) / 0", math.nan),
        ("log(b)", math.nan),
        ("9**9**9 + a", math.inf),
        ("a ** 9999 ** 9999", math.inf),
        ("1e999 * a", math.inf),
        ("exp(exp(exp(exp(a))))", math.inf),
    ],
)
def test_what_has_no_finite_value_is_marked_like_any_other(metrics, text, value):
    started = time.monotonic()
    np.testing.assert_array_equal(curve_of(metrics, text)[1].y, [value] * 10)
    assert time.monotonic() - started < 1


HOSTILE = [
    "__import__('os').system('true')",
    "a.__class__",
    "(lambda: a)()",
    "[a for a in a]",
    "a if a else a",
    "a := 1",
    "f'{a}'",
    "'a' * 10**10",
    "a[0]",
    "a // b",
    "a % b",
    "a == b",
    "a @ b",
    "a and b",
    "not a",
    "~a",
    "a, b",
    "()",
    "",
    "a b",
    "a +",
    "2a",
    "1j * a",
    "True * a",
    "n0",
    "log",
    "log(a, b)",
    "log()",
    "min()",
    "log(a)(b)",
    "log(*a)",
    "min(a, key=b)",
    "import os",
    "a # b",
    "a; b",
    "a\\\nb",
    "\0",
    "ａ",
    "1 + 1",
]


def sentence_of(metrics, text: str) -> str:
    """Return why a formula is refused; "" if it gives a curve."""
    try:
        assert len(curve_of(metrics, text)[1]) == 10
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", HOSTILE)
def test_anything_else_is_refused_in_one_sentence(metrics, text):
    with pytest.raises(InputError, match=r"^the formula .*(allowed: |which the run doesn't have)") as raised:
        curve_of(metrics, text)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10_000,
        "(" * 5_000 + "a" + ")" * 5_000,
        "-" * (LONGEST - 1) + "a",
        "(" * 149 + "a" + ")" * 149,
        "abs(" * 59 + "a" + ")" * 59,
        "a**" * 99 + "a",
        "9" * 299,
        "a+" * 149 + "a",
        "a" + "/a" * 149,
    ],
)
def test_long_and_deep_formulas_are_computed_or_refused_but_never_crash(metrics, text):
    started = time.monotonic()
    said = sentence_of(metrics, text)
    assert len(said) < 600
    assert time.monotonic() - started < 2


def test_an_unknown_name_is_told_with_the_one_that_was_meant(metrics):
    with pytest.raises(InputError, match=r"'train/los'.* did you mean train/loss\? .*validation/accuracy"):
        curve_of(metrics, "train/los - a")
    with pytest.raises(InputError, match="names that it has: none"):
        curve_of(Snapshot({}, (), 0, 0), "loss")


@given(text=st.text(alphabet=st.sampled_from("ab/ +-*()0.9,losgmin_'\"[]:=\n"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_curve_or_a_sentence(metrics, text):
    assert sentence_of(metrics, text) == "" or sentence_of(metrics, text).startswith("the formula ")


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_formula_gives_what_the_same_operations_give_for_numbers(metrics, data):
    def drawn(depth: int) -> tuple[str, float]:
        """Return a formula and its value, computed beside it by NumPy's numbers."""
        kind = data.draw(st.integers(0, 5 if depth else 1))
        if kind == 0:
            name = data.draw(st.sampled_from(["a", "b", "train/loss", "train/a"]))
            return name, np.float64(VALUES[name.removeprefix("train/")])
        if kind == 1:
            number = data.draw(st.sampled_from([0.5, 3.0, 1e-3, 12.0]))
            return f"{number:g}", np.float64(number)
        text, value = drawn(depth - 1)
        if kind == 2:
            return f"-({text})", -value
        if kind == 3:
            return f"abs({text})", abs(value)
        more, other = drawn(depth - 1)
        if kind == 4:
            return f"min({text}, {more})", np.minimum(value, other)
        acts = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
        sign, act = data.draw(st.sampled_from(list(acts.items())))
        return f"({text} {sign} {more})", act(value, other)

    with np.errstate(all="ignore"):
        text, value = drawn(3)
    np.testing.assert_array_equal(curve_of(metrics, f"max({text}, {text}) + 0 * a")[1].y, [value + 0.0] * 10)
