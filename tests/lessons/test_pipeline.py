"""Schedules of lesson 12: their times follow the rules of a pipeline, and one that never ends is refused."""

import json

import numpy as np
import pytest

from course.lessons.pipeline.schedules import (
    best_cuts,
    idle_share,
    most_kept,
    one_forward_one_backward,
    schedule_of,
    seconds_of,
    simulate,
    write_trace,
)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 3, 12])
def test_1f1b_has_the_bubble_of_the_formula_and_keeps_no_more_than_it_may(stages, micro_batches):
    schedule = one_forward_one_backward(stages, micro_batches)
    spans = simulate(schedule, [1.0] * stages, [2.0] * stages)
    assert np.isclose(idle_share(spans), (stages - 1) / (micro_batches + stages - 1))
    assert most_kept(schedule) == [min(stages - stage, micro_batches) for stage in range(stages)]
    assert schedule_of(spans) == schedule


def test_the_slowest_stage_sets_the_pace():
    schedule = one_forward_one_backward(3, 100)
    assert 300 < seconds_of(simulate(schedule, [1, 1, 0.5], [1, 2, 0.5])) < 1.02 * 300


def test_a_schedule_that_never_ends_is_refused_with_who_waits_for_what():
    with pytest.raises(ValueError, match="stage 1 can't begin B0 before F0 of stage 1"):
        simulate([[("F", 0), ("B", 0)], [("B", 0), ("F", 0)]], [1, 1], [1, 1])


def test_a_cut_has_the_least_possible_largest_sum():
    assert best_cuts([1, 1, 1, 9], 2) == (3,)
    assert best_cuts([3, 1, 2, 2, 4], 3) == (2, 4)


def test_a_trace_has_each_pass_with_its_stage_micro_batch_and_seconds(tmp_path):
    spans = simulate(one_forward_one_backward(2, 3), [0.25, 0.5], [0.5, 1.0])
    write_trace(spans, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["name"] in ("forward", "backward")]
    assert len(bars) == len(spans)
    assert sum(bar["dur"] for bar in bars) / 1e6 == pytest.approx(sum(s.end - s.begin for s in spans))
