"""Predictions count when they are given before the result, and no lesson waits for one."""

import importlib

import pytest
from IPython.core.formatters import DisplayFormatter

from course.lessons import outcome, predict, record
from course.lessons.begin import Lesson
from labkit.errors import InputError
from labkit.figures import widgets

begin = importlib.import_module("course.lessons.begin")
parse_number = importlib.import_module("course.lessons.predict").parse_number


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """What the cells of a lesson 04 show, without anybody at its widgets."""
    items = []
    monkeypatch.setattr(begin, "_begun", [Lesson("04_replicas", None, tmp_path)])
    monkeypatch.setattr("IPython.display.display", items.append)
    return items


@pytest.fixture
def at_the_widgets(shown, monkeypatch):
    monkeypatch.setattr(widgets, "is_interactive", lambda: True)
    return shown


def html(item):
    return DisplayFormatter().format(item)[0]["text/html"]


def test_a_number_is_typed_before_the_result_and_compared_with_it(at_the_widgets):
    predict("04.a", "How long does a step take?", unit="seconds")
    control, said = at_the_widgets[-1].children
    control.value = "a while"
    assert said.value == "&#x27;a while&#x27; is not a number; write one such as 1200 or 0.5."
    control.value = "3 seconds"
    assert said.value == "Kept: 3 seconds. Now run the next cell."
    outcome("04.a", 6.0)
    assert repr(at_the_widgets[-1]) == ("04.a: you predicted 3 seconds; it was 6 seconds: 0.5 × the result")
    control.value = "6"
    assert said.value == "The result has been shown already, so this is not kept."
    record()
    assert "3 seconds  6 seconds     0.5 × the result" in repr(at_the_widgets[-1])


@pytest.mark.parametrize(("chosen", "said"), [("ring", "right"), ("tree", "not right")])
def test_a_choice_is_clicked_and_right_or_not(chosen, said, at_the_widgets):
    predict("04.b", "Which is faster?", ["ring", "tree"])
    control = at_the_widgets[-1].children[0]
    assert control.value is None, "nothing is chosen for the reader"
    control.value = chosen
    outcome("04.b", "ring")
    assert repr(at_the_widgets[-1]).endswith(f"it was ring: {said}")


def test_a_restarted_kernel_still_has_the_prediction_and_asks_a_missed_one_anew(at_the_widgets):
    for number in "ab":
        predict(f"04.{number}", "How many?")
    at_the_widgets[1].children[0].value = "4"
    outcome("04.a", 4)
    outcome("04.b", 5)
    for number in "ab":
        predict(f"04.{number}", "How many?")
    kept, missed = at_the_widgets[-3].children[0], at_the_widgets[-1].children[0]
    assert (kept.value, missed.value) == ("4", "")
    missed.value = "5"
    outcome("04.b", 5)
    assert repr(at_the_widgets[-1]).endswith("you predicted 5; it was 5: exact")


def test_without_widgets_the_lesson_runs_on_and_folds_the_answer_behind_the_question(shown):
    predict("04.a", "Which <b> is faster?", ["ring", "tree"])
    predict("04.c", "How many?")
    outcome("04.a", "ring")
    assert len(shown) == 3
    assert "ring · tree" in html(shown[0]) and "Which &lt;b&gt; is" in html(shown[0])
    answer = "It was ring; no prediction was given."
    assert html(shown[2]) == f"<details><summary>Which &lt;b&gt; is faster?</summary>{answer}</details>"
    record()
    assert "no prediction was given" in html(shown[-1])
    assert repr(shown[-1]).splitlines()[2].split()[-4:] == ["many?", "–", "–", "–"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,200", 1200),
        ("0.5 %", 0.5),
        (" 1e3 ", 1000),
        ("1,5", None),
        ("nan", None),
        ("", None),
        ("two", None),
    ],
)
def test_what_a_reader_types_is_a_number_or_asked_for_again(text, value):
    assert parse_number(text, "%") == value


def test_mistakes_of_an_author_are_named(shown, monkeypatch):
    predict("04.a", "Which?", ["ring", "tree"])
    predict("04.b", "How many?")
    for number, value, said in (
        ("04.a", "star", "outcome 04.a is 'star'; allowed: ring, tree"),
        ("04.b", "star", "allowed: a finite number"),
        ("04.b", float("nan"), "allowed: a finite number"),
        ("04.c", 1, "run the cell with predict"),
        ("05.a", 1, "not of lesson 04_replicas; allowed: 04.a to .z"),
    ):
        with pytest.raises(InputError, match=said):
            outcome(number, value)
    monkeypatch.setattr(begin, "_begun", [])
    with pytest.raises(InputError, match="no lesson has begun"):
        predict("04.a", "Which?")
