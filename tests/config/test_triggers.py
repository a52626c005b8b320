"""What is due after a step of a training."""

from dataclasses import replace

import pytest

from labkit.config import RunConfig
from labkit.config.run import Triggers

RUN = RunConfig(train_steps=10, validate_every_steps=4, checkpoint_every_steps=3)


def steps(asked) -> list[int]:
    return [step for step in range(1, 11) if asked(step)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [(4, [4, 8, 10]), (0, [10]), (None, [3, 5, 8, 10])],
    ids=["as asked", "only at the end", "after each epoch of two and a half steps"],
)
def test_validation(every, expected):
    assert steps(Triggers(replace(RUN, validate_every_steps=every), 2.5, True).validation) == expected


def test_nothing_to_validate_on():
    assert steps(Triggers(RUN, 2.5, False).validation) == []


@pytest.mark.parametrize(("every", "expected"), [(3, [3, 6, 9, 10]), (None, [10])])
def test_checkpoints(every, expected):
    assert steps(Triggers(replace(RUN, checkpoint_every_steps=every), 2.5, True).checkpoint) == expected


@pytest.mark.parametrize(
    ("step", "last", "expected"), [(0, 2, 2), (0, 9, 3), (3, 9, 4), (8, 99, 9), (9, 99, 10)]
)
def test_no_step_is_started_beyond_the_first_with_something_due(step, last, expected):
    assert Triggers(RUN, 2.5, True).first(step, last) == expected
