"""Predictions count when they are given before the result, and no lesson waits for one."""

import importlib

import pytest

from course.lessons import outcome, predict, record
from course.lessons.begin import Lesson
from labkit.errors import InputError

begin = importlib.import_module("course.lessons.begin")
module = importlib.import_module("course.lessons.predict")


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """What the cells of a lesson 04 show, without anybody at its widgets."""
    items = []
    monkeypatch.setattr(begin, "_begun", [Lesson("04_replicas", None, tmp_path)])
    monkeypatch.setattr("IPython.display.display", items.append)
    return items


@pytest.fixture
def at_the_widgets(shown, monkeypatch):
    monkeypatch.setattr(module, "is_interactive", lambda: True)
    return shown


def text(item):
    return item.data


def test_a_number_is_typed_before_the_result_and_compared_with_it(at_the_widgets):
    predict("04.a", "How long does a step take?", unit="seconds")
    control, _, said = at_the_widgets[-1].children
    control.value = "a while"
    assert said.value == "&#x27;a while&#x27; is not a number; write one such as 1200 or 0.5."
    control.value = "3 seconds"
    assert said.value == "Kept: 3 seconds. Now run the next cell."
    outcome("04.a", 6.0)
    assert text(at_the_widgets[-1]) == "**04.a** You predicted 3 seconds; it was 6 seconds: 0.5 × the result."
    control.value = "6"
    assert said.value == "The result has been shown already, so this is not kept."
    record()
    row = "| 04.a How long does a step take? | 3 seconds | 6 seconds | 0.5 × the result |"
    assert row in text(at_the_widgets[-1])


@pytest.mark.parametrize(("chosen", "said"), [("ring", "right"), ("tree", "not right")])
def test_a_choice_is_clicked_and_right_or_not(chosen, said, at_the_widgets):
    predict("04.b", "Which is faster?", ["ring", "tree"])
    control = at_the_widgets[-1].children[0]
    assert control.value is None, "nothing is chosen for the reader"
    control.value = chosen
    outcome("04.b", "ring")
    assert text(at_the_widgets[-1]).endswith(f"it was ring: {said}.")


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
    assert text(at_the_widgets[-1]).endswith("You predicted 5; it was 5: right.")


def test_without_widgets_the_lesson_runs_on_and_folds_the_answer_behind_the_question(shown):
    predict("04.a", "Which is faster?", ["ring", "tree"])
    predict("04.c", "How many?")
    outcome("04.a", "ring")
    assert len(shown) == 3
    assert text(shown[0]).endswith("** Which is faster? (ring · tree)")
    assert text(shown[2]).split("\n\n") == [
        "<details><summary>Which is faster?</summary>",
        "No prediction was given; it was ring.",
        "</details>",
    ]
    record()
    assert "| 04.c How many? | – | – | – |" in text(shown[-1])
    assert text(shown[-1]).endswith("No prediction was given.")


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
    assert module.parse_number(text, "%") == value


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


def test_a_model_that_is_far_off_is_named_beside_its_error(shown):
    module.compared({"ring": (3.0, 4.0, "ms"), "tree": (1.5, 1.0, "ms"), "nothing": (0.1, 0.0, "")})
    assert "| ring | 3 ms | 4 ms | -25% |" in shown[-1].data
    assert shown[-1].data.endswith("Off by more than 30%: tree; nothing.")
