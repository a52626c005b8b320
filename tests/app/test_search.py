"""The Search page: trials, rungs, the best so far, importance; its buttons and commands; damaged files."""

import json
import os
import re
import shutil
import socket
import sys
import time
from urllib.parse import parse_qs

import numpy as np
import pytest

from app.acting import launches
from app.searching import drawings
from app.searching.table import TABLE
from labkit.errors import InputError
from labkit.experiments.search.result import SearchResult
from labkit.run_directory import RunDirectory, RunLock
from tests.app.boards import charts
from tests.app.conftest import write_run
from tests.app.pages import checked, finished, html_of, open_page, press, rows_of, table_of, tick, words
from tests.app.searches import RUNGS, SPACE, trials, write_search
from tests.run_directory.test_foreign_files import KINDS, replace


@pytest.fixture
def folder(runs_folder, monkeypatch):
    monkeypatch.setattr(drawings, "PAGE_SECONDS", 0.0)
    return runs_folder.parent / "searches" / "shapes-1"


def opened(**url):
    return finished(open_page("search", "", **url))


def test_without_a_search_the_page_says_how_to_make_one(runs_folder):
    assert "labkit search --space" in words(opened())


def test_the_trials_stand_in_a_table_with_the_best_first_and_why_others_ended(folder):
    write_search(folder, trials(28))
    at = opened()
    rows = rows_of(at, TABLE)
    assert len(rows) == 28
    assert [row["state"] for row in rows[:4]] == ["finished"] * 3 + ["pruned"]
    values = [row["value"] for row in rows[:3]]
    assert values == sorted(values, reverse=True)
    assert {row["step"] for row in rows[:3]} == {"900"}
    pruned = [row["why"] for row in rows if row["state"] == "pruned"]
    assert all("the best 9 went on" in why or "the best 3 went on" in why for why in pruned)
    assert rows[-1]["why"] == "the loss became NaN at step 40"
    assert rows[0]["href"].startswith("live?run=")
    said = words(at)
    assert "Trials ended 28 of 27" in said and "State finished" in said
    at.session_state["search-states"] = "failed"
    assert [row["name"] for row in rows_of(checked(at.run()), TABLE)] == ["27"]


def test_rows_keep_their_places_until_another_trial_is_the_best(folder):
    """Or a page that was open all the time would end with the best trial anywhere."""
    found = trials(28)
    write_search(folder, found)
    at = opened()
    rows, view = rows_of(at, TABLE), table_of(at, TABLE)["view"]
    worst, second = rows[-2]["name"], rows[1]["name"]
    for name, keeps in ((worst, True), (second, False)):
        results = found[int(name)]["results"]
        results[-1]["value"] += 0.001 if keeps else 0.9
        write_search(folder, found)
        again = table_of(opened(), TABLE)["view"]
        assert (again == view) == keeps


def test_trials_are_sorted_opened_and_shown_by_their_numbers(folder):
    write_search(folder, trials(28))
    at = opened()
    at.session_state["search-sort"] = "-setting num_filters"
    sizes = [int(row["setting num_filters"]) for row in rows_of(checked(at.run()), TABLE)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 5
    said = words(tick(at, "3", table=TABLE))
    assert "Trial 3," in said and "ticked trials" not in said
    said = words(tick(at, *map(str, range(9)), table=TABLE))
    assert said.count("Trial ") == 3 and "The best 3 of 9 ticked trials are shown." in said
    at.session_state["search-sort"] = "nothing"
    assert len(rows_of(checked(at.run()), TABLE)) == 28


def test_the_best_so_far_never_falls_and_each_result_is_a_dot_of_its_rung(folder):
    found = write_search(folder, trials(28))
    [chart] = charts(opened())
    assert (chart.title, chart.unit) == ("Validation accuracy", "percent")
    best, *rungs = chart.lines.values()
    assert (np.diff(best.y) >= 0).all() and (np.diff(best.x) >= 0).all()
    assert [len(line.x) for line in rungs] == [27, 9, 3] and len({line.color for line in rungs}) == 3
    values = [result.value for result in SearchResult(found).improvements()]
    assert values == sorted(values) and len(values) > 2


def test_a_loss_is_better_where_it_is_lower(folder):
    found = trials(10)
    study = SearchResult(write_search(folder, found, objective="loss", direction="minimize"))
    assert study.best_trial.last.value == min(
        trial["results"][-1]["value"] for trial in found if len(trial["results"]) == 3
    )
    at = opened()
    assert "Validation loss" in words(at)
    assert (charts(at)[0].title, charts(at)[0].unit) == ("Validation loss", "")


def test_the_rungs_say_how_many_went_on(folder):
    write_search(folder, trials(28))
    rows = re.sub("</?bdi>", "", html_of(opened())).split("<tr>")[1:]  # before them the folder, pytest-100
    cells = [row.replace("</td>", "|").replace("<td>", "") for row in rows if "100" in row or "300" in row]
    assert "9|18|1|" in cells[0] and "3|6|0|" in cells[1]


def test_who_trains_or_failed_on_the_way_to_a_rung_went_on_from_the_one_before(folder):
    found = trials(28)
    pruned = [one for one in found if one["state"] == "pruned" and len(one["results"]) == 1]
    for one, state in zip(pruned, ("failed", "running"), strict=False):
        one |= {"state": state, "rung": 1}
    write_search(folder, found)
    rows = re.sub("</?bdi>", "", html_of(opened())).split("<tr>")[1:]  # before them the folder, pytest-100
    cells = [row.replace("</td>", "|").replace("<td>", "") for row in rows if "100" in row or "300" in row]
    assert "11|16|1|" in cells[0] and "3|6|1|" in cells[1]


def test_the_runs_to_compare_begin_with_the_best_trial(folder):
    found = trials(12)
    for one in found:
        one["runs"] = [f"t{one['number']}"]
        write_run(folder, f"t{one['number']}", steps=1)
    next(one for one in found if one["state"] == "pruned")["results"][0]["value"] = 0.99  # on a lower rung
    best = SearchResult(write_search(folder, found)).best
    [query] = [one.proto.query_string for one in opened().get("page_link") if "Compare" in one.proto.label]
    assert parse_qs(query)["runs"][0] == str(best) == parse_qs(query)["run"][0]


def test_importance_finds_the_setting_that_counts(folder):
    pytest.importorskip("optuna")
    shares, place, count = SearchResult(write_search(folder, trials(60))).importance()
    assert (place, count) == (f"at step {RUNGS[0]}", 59)
    assert shares[0][0] == "learning_rate" and shares[0][1] > 0.7
    assert {name for name, _ in shares} == set(SPACE)
    with pytest.raises(InputError, match="needs 4 different results"):
        SearchResult(write_search(folder, trials(3))).importance()


def test_a_search_that_was_started_over_has_an_importance_of_its_own(folder, monkeypatch):
    monkeypatch.setattr(SearchResult, "importance", lambda self: ([(self.request.sampler, 1.0)], 100, 9))
    write_search(folder, trials(9), sampler="tpe")
    assert "tpe" in html_of(finished(opened()))
    write_search(folder, trials(9), sampler="random")
    shown = html_of(finished(opened()))
    assert "<bdi>random</bdi>" in shown and "<bdi>tpe</bdi>" not in shown


def test_without_optuna_the_page_says_how_to_install_it(folder, monkeypatch):
    write_search(folder, trials(9))
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs optuna, not installed here" in words(opened())


def test_slices_and_parallel_coordinates_open(folder):
    write_search(folder, trials(12))
    at = open_page("search", "")
    at.session_state["search-slices"] = at.session_state["search-parallel"] = True
    at.session_state["slice"] = "model"
    checked(at.run())


def test_the_best_so_far_says_how_many_are_equal(folder):
    found = trials(28)
    ended = [one for one in found if one["state"] == "finished"]
    for one in ended:
        one["results"][-1]["value"] = 0.9
    first = min(one["number"] for one in ended)
    write_search(folder, found)
    # In the label, which wraps: a long value would run out of the page.
    assert f"Best trial, first of {len(ended)} equal {first}, step 900" in words(opened())


def test_the_conclusion_is_shown_in_the_searchs_own_words(folder):
    sentence = "The best <b>trial</b> gave 0.58 with other seeds, 0.03 less than when it was chosen."
    found = trials(9)
    write_search(folder, found, conclusion={"words": [sentence]}, repeat=found[0])
    assert sentence in words(opened())
    write_search(folder, found, repeat=found[0])
    assert "The best trial is repeated with fresh seeds" in words(opened())


def test_a_silent_search_is_lost_and_a_name_breaks_nothing(folder):
    made = write_search(folder.with_name("*a* <b>"), trials(5), state="running", updated=time.time() - 61)
    assert SearchResult(made).state == "lost"
    assert "State lost" in words(opened())
    write_search(folder, trials(5))
    at = opened(search="*a* <b>")
    assert at.selectbox(key="search-chosen").value == "*a* <b>"
    assert sorted(at.selectbox(key="search-chosen").options) == ["*a* <b>", "shapes-1"]


# ---- buttons -------------------------------------------------------------------------------------------


def test_stop_asks_the_process_that_searches(folder, monkeypatch):
    write_search(folder, trials(5), state="running", host=socket.gethostname(), pid=os.getpid())
    asked = []
    monkeypatch.setattr(launches, "training_process", lambda run: 4711)
    monkeypatch.setattr(launches, "ask_to_stop", lambda run, process: asked.append((run.path, process)))
    press(opened(), "Save and stop")
    assert asked == [(folder, 4711)]
    lock = RunLock(RunDirectory(folder))
    assert lock.acquire() and lock.holder() == os.getpid()
    lock.release()


def test_a_search_that_ended_goes_on_in_a_process_of_its_own(folder, monkeypatch):
    write_search(folder, trials(5), state="interrupted")
    started = []
    monkeypatch.setattr(launches, "_launched", lambda words, run, is_new: started.append((words, run.path)))
    press(opened(), "Go on")
    assert started == [(["search", "--join", str(folder)], folder)]
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    assert not [one for one in opened().button if one.label == "Go on"]


def test_what_would_run_a_file_is_left_to_a_shell(folder):
    changes = {"state": "interrupted", "message": "stopped by SIGTERM"}
    space = SPACE | {"model": {"kind": "choice", "choices": ["resnet20", "/tmp/evil.py:net"]}}
    for changed in ({"space": space}, {"fixed": {"callbacks": "evil.py"}}, {"preset": "/tmp/evil.json"}):
        write_search(folder, trials(5), **changes, **changed)
        at = opened()
        assert not [one for one in at.button if one.label == "Go on"]
        said = words(at)
        assert "Look at them in search.json" in said and "--join" not in said
    write_search(folder, trials(5), **changes)
    assert f"labkit search --join {folder}" in words(opened())


# ---- files that anybody may have put there --------------------------------------------------------------


@pytest.mark.parametrize("name", ["search.json", "trials.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"space": 3, "trials": {}}', "", '{"a":' * 100_000, *KINDS])
def test_a_damaged_file_is_named(folder, name, content, tmp_path):
    (tmp_path / "mine").write_text("mine")
    write_search(folder, trials(5))
    if content in KINDS:
        replace(folder / name, content)
    else:
        (folder / name).write_text(content)
    if not (folder / "search.json").is_file():
        return
    assert name in words(opened())
    assert (tmp_path / "mine").read_text() == "mine"


def test_values_of_other_types_and_odd_numbers_break_nothing(folder):
    found = trials(6)
    found[0]["values"] = {"learning_rate": "fast", "other": [1]}
    found[1]["values"] = {}
    found[3]["runs"] = ["../../etc", "missing"]
    write_search(folder, found, rungs=[100], conclusion={"words": 3})
    assert len(rows_of(opened(), TABLE)) == 6
    text = (folder / "trials.json").read_text()
    for odd in ("null", "NaN"):
        damaged = text.replace(json.dumps(found[4]["results"][0]["value"]), odd)
        (folder / "trials.json").write_text(damaged)
        assert "trials.json can't be read: Expected `float`" in words(opened())
    (folder / "trials.json").unlink()
    assert "State starting" in words(opened())
    shutil.rmtree(folder)
    assert "labkit search" in words(opened())
