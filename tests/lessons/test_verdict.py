"""The verdict on an answer is one sentence that helps, whatever the answer is."""

import json
import signal
import sys
import time

import numpy as np
import pytest

import course.lessons.verdict as checks
from course.lessons.verdict import (
    Exercise,
    Wrong,
    a_choice,
    a_function,
    a_number,
    an_array,
    check,
    time_limit,
)
from labkit.errors import InputError


@pytest.fixture
def of(monkeypatch):
    def make(test):
        monkeypatch.setattr(checks, "exercises", lambda lesson: (Exercise("04.1", "title", test),))
        return lambda answer: check("04.1", answer)

    return make


def a_pair(answer):
    return an_array(answer, (2, 3))


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (a_number, "seven", "'seven' (str); expected a number"),
        (a_number, float("nan"), "nan; expected a finite number"),
        (a_number, [1, 2], "shape [2]; expected one number"),
        (a_number, True, "True (bool); expected a number"),
        (a_number, {}, "{} (dict); expected a number"),
        (a_number, 10**400, "(int); expected a number below 1e308"),
        pytest.param(a_number, 10**6000, "a value of the type int; expected", id="thousands of digits"),
        (a_number, None, "not answered yet"),
        (a_number, ..., "not answered yet"),
        (a_pair, np.zeros((3, 2)), "shape [3, 2]; expected [2, 3]"),
        (a_pair, np.full((2, 3), np.nan), "NaN or Infinity"),
        (a_pair, "text", "'text' (str); expected numbers of the shape [2, 3]"),
        (a_pair, [[1, 2], [3]], "expected numbers of the shape [2, 3]"),
        (a_pair, [10**400], "expected numbers of the shape [2, 3]"),
    ],
)
def test_what_is_not_a_number_or_not_the_array_is_named(of, kind, answer, words):
    verdict = of(lambda answer: str(kind(answer)))(answer)
    assert not verdict
    assert words in str(verdict)


def test_a_tensor_is_an_array(of):
    class Tensor:
        """Converts to NumPy as tensors do."""

        def __array__(self, dtype=None, copy=None):
            return np.ones((2, 3), np.float32)

    assert of(lambda answer: str(a_pair(answer).sum()))(Tensor())


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("test", [a_number, lambda answer: an_array(answer, (2,)), a_function])
def test_what_cannot_be_shown_is_named_by_its_type(of, test):
    assert "a value of the type Unshowable; expected" in str(of(test)(Unshowable()))


@pytest.mark.parametrize("number", ["00.4", "03.1", "08.3", "09.3", "09.4"])
@pytest.mark.parametrize(
    "answer",
    ["words", {"a": 1}, [[1], [1, 2]], ..., 10**400, np.zeros((9, 9)), Unshowable(), iter([1])],
    ids=lambda answer: type(answer).__name__,
)
def test_what_is_no_answer_gets_one_line_and_raises_nothing(number, answer):
    for given in (answer, lambda *inputs: answer):
        verdict = check(number, given)
        assert not verdict
        assert "raised" not in verdict.text
        assert "\n" not in verdict.text


def test_choices_are_listed_and_a_function_is_asked_for(of):
    assert "'sync', 'async'" in str(of(lambda answer: a_choice(answer, ["sync", "async"]))("both"))
    assert of(lambda answer: a_choice(answer, ["sync", "async"]))(" Sync ")
    assert "expected a function" in str(of(lambda answer: str(a_function(answer)))(3))


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError in line {} of your cell: division by zero"),
        (lambda: json.dumps(object()), "TypeError in line {} of your cell"),  # whoever raised
        (lambda: sys.exit(3), "your answer ends the program in line {} of your cell"),
    ],
)
def test_an_exception_names_the_line_of_the_answer(of, raises, said):
    class Called:  # an object has no __code__
        def __call__(self):
            return raises()

    for answer in (raises, Called()):
        assert said.format(raises.__code__.co_firstlineno) in str(of(lambda answer: answer())(answer))


def test_a_bare_except_does_not_hold_the_limit_off(of, monkeypatch):
    monkeypatch.setattr(checks, "SECONDS", 0.2)

    def answer():
        while True:
            try:
                time.sleep(0.01)
            except:  # noqa: E722
                continue

    started = time.monotonic()
    assert "over 0.2 s" in str(of(lambda answer: answer())(answer))
    assert time.monotonic() - started < 20


def test_the_limit_around_a_limit_goes_on_less_the_time_that_passed():
    with time_limit(100):
        with time_limit(50):
            time.sleep(0.3)
        left, again = signal.getitimer(signal.ITIMER_REAL)
        assert 40 < left < 99.75
        assert again == 1


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
