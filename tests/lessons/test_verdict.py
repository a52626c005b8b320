"""The verdict on an answer is one sentence that helps, whatever the answer is."""

import contextlib
import time

import numpy as np
import pytest

import labkit.lessons.verdict as checks
from labkit.errors import InputError
from labkit.lessons.verdict import (
    Exercise,
    Wrong,
    a_choice,
    a_function,
    a_number,
    an_array,
    check,
)


@pytest.fixture
def of(monkeypatch):
    def make(test):
        monkeypatch.setattr(checks, "exercises", lambda lesson: (Exercise("04.1", "title", test),))
        return lambda answer: check("04.1", answer)

    return make


@pytest.mark.parametrize("answer", [None, ...])
def test_an_untouched_stub_is_not_answered_yet(of, answer):
    verdict = of(lambda answer: "right")(answer)
    assert not verdict
    assert "not answered yet" in str(verdict)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("seven", "'seven' (str); expected a number"),
        (float("nan"), "nan; expected a finite number"),
        ([1, 2], "shape [2]; expected one number"),
        (True, "True (bool); expected a number"),
        ({}, "{} (dict); expected a number"),
    ],
)
def test_what_is_not_a_number_is_named(of, answer, words):
    verdict = of(lambda answer: str(a_number(answer)))(answer)
    assert not verdict
    assert words in str(verdict)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.zeros((3, 2)), "shape [3, 2]; expected [2, 3]"),
        (np.full((2, 3), np.nan), "NaN or Infinity"),
        ("text", "'text' (str); expected numbers of the shape [2, 3]"),
        ([[1, 2], [3]], "expected numbers of the shape [2, 3]"),
    ],
)
def test_what_is_not_the_array_is_named(of, answer, words):
    verdict = of(lambda answer: str(an_array(answer, (2, 3))))(answer)
    assert words in str(verdict)


class Tensor:
    """Converts to NumPy as tensors do."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 3), np.float32)


def test_a_tensor_is_an_array(of):
    assert of(lambda answer: str(an_array(answer, (2, 3)).sum()))(Tensor())


def test_choices_are_listed_and_a_function_is_asked_for(of):
    assert "'sync', 'async'" in str(of(lambda answer: a_choice(answer, ["sync", "async"]))("both"))
    assert of(lambda answer: a_choice(answer, ["sync", "async"]))(" Sync ")
    assert "expected a function" in str(of(lambda answer: str(a_function(answer)))(3))


def test_an_exception_names_the_line_of_the_answer(of):
    def answer(x):
        return 1 / x

    line = answer.__code__.co_firstlineno + 1
    verdict = of(lambda answer: str(answer(0)))(answer)
    assert f"ZeroDivisionError in line {line} of your cell: division by zero" in str(verdict)


def test_an_endless_loop_is_ended(of, monkeypatch):
    monkeypatch.setattr(checks, "SECONDS", 1)

    def answer():
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    started = time.monotonic()
    verdict = of(lambda answer: answer())(answer)
    assert "over 1 s" in str(verdict)
    assert time.monotonic() - started < 20


def test_a_wrong_answer_gets_its_hint_and_a_right_one_what_was_verified(of):
    def test(answer):
        if a_number(answer) != 4:
            raise Wrong("count the arrays")
        return "four arrays"

    assert str(of(test)(3)) == "✗ exercise 04.1: count the arrays"
    assert str(of(test)(np.float32(4))) == "✓ exercise 04.1: four arrays"
    assert "<" not in of(test)("<b>")._repr_html_().split(">", 1)[1].rsplit("<", 1)[0]


@pytest.mark.parametrize("number", ["4", "99.1", "04.9", 4, "replicas"])
def test_an_unknown_exercise_is_an_error_that_says_which_exist(of, number):
    of(lambda answer: "right")
    with pytest.raises(InputError, match="exercise|lesson"):
        check(number, 1)
