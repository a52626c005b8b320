"""With another seed, a check gives an answer other inputs, passes the right one and fails the wrong ones."""

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

from course.lessons import verdict
from course.lessons.commands import exercise_cells
from course.lessons.exercises.debug import _Covered
from course.lessons.verdict import exercises
from labkit.notebook.files import lesson_files, read_notebook

SEEDS = 0, 7
SAME = {
    "08.4": "a choice between sentences of the lesson",
}
EXERCISES = [
    pytest.param(path, exercise, id=exercise.number)
    for path in lesson_files()
    for exercise in exercises(int(path.name[:2]))
]
pytestmark = pytest.mark.long


class Recorded:
    """An answer that notes what it is given. In another process it is the answer itself."""

    def __init__(self, answer, given):
        self.answer, self.given = answer, given

    def __call__(self, *inputs, **named):
        self.given.append(values_of([inputs, named]))
        return self.answer(*inputs, **named)

    def __reduce__(self):
        return copy.copy, (self.answer,)


def values_of(given):
    """Return what an input is made of, so that two can be compared."""
    if isinstance(given, Path):
        return given.read_bytes() if given.is_file() else None
    if isinstance(given, Mapping):
        return {name: values_of(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [values_of(value) for value in given]
    if isinstance(given, _Covered):  # a patient, behind its methods
        return values_of(vars(given.train.func.__self__))
    if isinstance(given, FunctionType):
        return values_of([cell.cell_contents for cell in given.__closure__ or ()])
    if type(given).__module__.startswith("keras"):
        return values_of(given.get_weights())
    if isinstance(given, np.ndarray) or hasattr(given, "numpy"):
        return np.asarray(given).tolist()
    return given if isinstance(given, str | bytes | int | float | None) else type(given).__name__


def given_to(answer, exercise, seed, monkeypatch):
    """Return the verdict on an answer with a seed, and all that its check gave it."""
    module, given = importlib.import_module(exercise.test.__module__), []
    if run := getattr(module, "run_answer", None):  # whose functions are called in other processes

        def noted(size, function, *inputs, each=None):
            given.append(values_of([inputs, each]))
            return run(size, function, *inputs, each=each)

        monkeypatch.setattr(module, "run_answer", noted)
    monkeypatch.setattr(verdict, "SEED", seed)
    parts = answer if isinstance(answer, tuple) else (answer,)
    parts = tuple(Recorded(part, given) if callable(part) else part for part in parts)
    checked = verdict.check(exercise.number, parts if isinstance(answer, tuple) else parts[0])
    monkeypatch.undo()
    return checked, given


def answer_of(path, exercise):
    """Return what the solution of an exercise hands to its check."""
    answers = []
    source = exercise_cells(read_notebook(path))[exercise.number]
    exec(
        compile(source, "<cell>", "exec"),
        {"__name__": "__main__", "check": lambda _, own: answers.append(own)},
    )
    return answers[0]


@pytest.mark.parametrize(("path", "exercise"), EXERCISES)
def test_a_seed_draws_other_inputs_for_which_the_solution_is_right_too(path, exercise, monkeypatch):
    answer = answer_of(path, exercise)
    found = []
    for seed in SEEDS:
        checked, given = given_to(answer, exercise, seed, monkeypatch)
        assert checked, checked
        found.append(given)
    assert (found[0] == found[1]) is (exercise.number in SAME)
