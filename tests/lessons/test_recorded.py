"""Measurements over links: made and kept where there can be links, elsewhere recorded, and said to be."""

import json
from pathlib import Path

import numpy as np
import pytest

from course.lessons import recorded
from course.lessons.begin import Lesson

NAMES = {
    "10_collectives": {"messages", "broadcast", "crossover", "spans", "steps"},
    "13_split_tensors": {"steps over 100 Mbit/s"},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reason", [None, "no namespaces here"])
def test_without_links_the_recorded_numbers_are_shown_and_said_to_be(reason, name, monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr(recorded, "why_no_hosts", lambda: reason)
    monkeypatch.setattr(recorded, "say", said.append)
    first = min(NAMES[name])
    found = recorded.Record(Lesson(name, None, tmp_path)).get(first, lambda: np.array([1.5, 2.5]))
    kept = json.loads((Path(recorded.__file__).parent / name[3:] / "recorded.json").read_text())
    if reason is None:
        assert (found, said) == ([1.5, 2.5], [])
        written = json.loads((tmp_path / "measured.json").read_text())
        assert written["values"] == {first: [1.5, 2.5]}
        assert written.keys() == kept.keys()
    else:
        assert found == kept["values"][first]
        assert said[0].startswith(reason)
        assert kept["date"] in said[1]
        assert "not measured here" in said[1]
        assert kept["values"].keys() == NAMES[name]
