"""The table of runs: its rows and selection, what is done with runs, the sidebar's choice of one."""

import json
import math
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from streamlit.testing.v1 import AppTest

from app import state
from app.run_table import actions, kept_views, table
from app.views import runs
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic
from labkit.run_directory.notes import change_notes, read_notes
from labkit.run_directory.stop import list_trash
from tests.app.conftest import configure
from tests.app.pages import button, checked, open_main, open_page, press, rows_of, tick, words
from tests.app.rows import append, evaluation_row, train_row


def names(at: AppTest) -> list[str]:
    return [row["name"] for row in rows_of(at)]


def row_of(at: AppTest, name: str) -> dict:
    return next(row for row in rows_of(at) if row["name"] == name)


def select(at: AppTest, *chosen: str) -> AppTest:
    return tick(at, *(row_of(at, name)["key"] for name in chosen))


@pytest.fixture
def three(make_run):
    """Three runs; the last one made was active first."""
    runs = [make_run(name) for name in ("first", "second", "third")]
    for age, run in enumerate(reversed(runs)):
        os.utime(run.status_path, (time.time() - 60 * age,) * 2)
    return runs


def test_each_run_has_a_row_with_what_is_known(three):
    at = open_main()
    assert names(at) == ["third", "second", "first"]
    row = rows_of(at)[0]
    assert (row["state"][0], row["progress"], row["best_validation"]) == ("finished", 60, "90.00 %")
    assert len(row["loss_curve"]["heights"]) == 40
    assert row["training_loss"] == "0.01667"
    assert row["test"] is None, "there was no test"


def test_twenty_rows_have_a_curve_and_one_whose_eye_is_opened_comes_first(make_run):
    for number in range(22):
        run = make_run(f"run {number}", steps=2)
        os.utime(run.status_path, (time.time() - 60 * number,) * 2)

    def drawn(count: str = "20 of 22 rows; 20 is the most", **url: str) -> list[str]:
        at = open_main(**url)
        assert f"Curves of {count}." in words(at)
        return [row["name"].removeprefix("run ") for row in rows_of(at) if row.get("eye")]

    numbers = [*map(str, range(22))]
    assert drawn() == numbers[:20]
    assert drawn(eyes="'-run 3' '+run 21'") == [*numbers[:3], *numbers[4:20], "21"]
    assert drawn("1 of 22 rows", eyes="- '+run 21'") == ["21"]
    assert drawn(eyes="'-run 3") == numbers[:20], "half a quotation says nothing"
    looks = [json.dumps(row["eye"]) for row in rows_of(open_main()) if row.get("eye")]
    assert len(set(looks)) == 20, "each has a colour or dashes of its own"


def test_a_row_keeps_its_colour_while_others_come_and_go(three, make_run):
    at = open_main()
    before = {name: row_of(at, name)["eye"] for name in ("first", "third")}
    at.session_state["runs-eyes"] = "-second"
    checked(at.run())
    assert "eye" not in row_of(at, "second")
    make_run("newest")
    checked(at.run())
    assert {name: row_of(at, name)["eye"] for name in before} == before
    assert row_of(at, "newest")["eye"] not in before.values()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sec", ["second"]),
        ("state=finished", ["third", "second", "first"]),
        ("test_accuracy>0.5 third", ["third"]),
        ("third test_accuracy > 0.5", ["third"]),
        ("sate=x", "did you mean 'state'"),
        ('"a', "quotation"),
        ("zzz", "fits"),
    ],
)
def test_the_filter_finds_runs_or_says_why_not(three, text, expected):
    append(three[2].metrics_path, evaluation_row(120, "test"))
    at = open_main(filter=text)
    if isinstance(expected, list):
        assert names(at) == expected
    else:
        assert expected in words(at)
        # A filter that says nothing leaves all runs in sight.
        assert (names(at) == ["third", "second", "first"]) if text != "zzz" else names(at) == []


def test_a_click_on_a_name_opens_its_run_whatever_the_browser_says(three, monkeypatch):
    opened: list = []
    monkeypatch.setattr(actions, "link", lambda page, labels: opened.append((page, labels)))
    monkeypatch.setattr(state, "listed_runs", lambda: {run.name: run for run in three})
    for said in (str(three[1].path), "/etc", "None"):
        runs._open_clicked(said)
    assert opened == [("live", ["second"])]


def test_a_filter_means_what_it_means_on_the_command_line():
    """There each condition is an argument, so that a space before a unit says nothing."""
    assert state.conditions_in("accuracy > 50 % age<2 h resnet") == ["accuracy>50%", "age<2h", "resnet"]
    assert state.conditions_in("seed=1 name='a b'") == ["seed=1", "name=a b"]


def test_runs_that_a_filter_hid_come_back_to_their_places(three):
    at = open_main(filter="second")
    assert names(at) == ["second"]
    at.text_input(key="filter").set_value("")
    assert names(checked(at.run())) == ["third", "second", "first"]


def test_a_view_is_kept_under_a_name_shown_by_a_click_and_removed(three):
    at = open_main(filter="s", group="seed", sort="-state")
    checked(at.multiselect(key="columns").set_value(["state", "active"]).run())
    for name in ("name", " mine *1* "):
        at.text_input(key=kept_views.NAME).set_value(name).run()
        press(at, "Keep this view")
    at = open_main()
    assert names(at) == ["third", "second", "first"]
    checked(at.button(key="view-mine *1*").click().run())
    shown = [at.session_state[key] for key in ("filter", "columns", "group", "archived", "runs-sort")]
    assert shown == ["s", ["state", "active"], ["seed"], False, "-state"]
    checked(at.button(key="no-view-mine *1*").click().run())
    checked(at.button(key="no-view-name").click().run())
    assert kept_views.read_kept() == {} and "None is kept yet" in words(at)
    press(at, "Keep this view")
    assert "the view has no name" in words(at)
    for damage in ("{", '{"version": 2}', '{"views": {"a": 1}}'):
        kept_views.kept_path().write_text(damage)
        at = open_main()
        assert ".views.json" in words(at) and names(at) == ["third", "second", "first"]


def test_people_who_keep_views_at_the_same_moment_lose_none(runs_folder, monkeypatch):
    def read_slowly(read=kept_views.read_kept):
        found = read()
        time.sleep(0.05)
        return found

    monkeypatch.setattr(kept_views, "read_kept", read_slowly)
    with ThreadPoolExecutor() as people:
        list(people.map(kept_views.keep, "abcd", [kept_views.View()] * 4))
    assert sorted(kept_views.read_kept()) == [*"abcd"]


def test_a_locked_page_shows_views_and_keeps_none(three, monkeypatch):
    kept_views.keep("mine", kept_views.View(text="second"))
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    at = open_main()
    assert button(at, "Keep this view") is None
    checked(at.button(key="view-mine").click().run())
    assert names(at) == ["second"]
    with pytest.raises(InputError, match="read-only"):
        kept_views.keep("mine", None)


def test_columns_are_kept_in_the_address_and_may_be_settings(three):
    shown = rows_of(open_main(columns=["State", "seed"]))[0]
    assert shown["state"][0] == "finished" and "seed" in shown and "test" not in shown
    at = open_main()
    at.multiselect(key="columns").set_value(["path", "learning_rate"])
    checked(at.run())
    assert row_of(at, "first")["path"] == str(three[0].path) and "learning_rate" in rows_of(at)[0]


def test_a_refresh_keeps_the_selection_on_its_runs(three, make_run):
    at = select(open_main(), "first", "third")
    make_run("newest")
    assert "2 selected: third, first" in words(checked(at.run()))
    three[1].path.rename(three[1].path.with_name(".gone"))
    assert "2 selected: third, first" in words(checked(at.run()))
    three[0].path.rename(three[0].path.with_name(".gone-too"))
    assert "1 selected: third" in words(checked(at.run()))


def test_to_the_trash_and_back_and_for_good(three):
    at = press(select(open_main(), "second"), "Move to trash")
    assert names(at) == ["third", "first"]
    assert "Moved to the trash: 1 run." in words(at)
    assert sorted(names(press(at, "Undo"))) == ["first", "second", "third"]
    at = press(select(at, "second", "first"), "Move to trash")
    trashed = [row["key"] for row in rows_of(at, "runs-trash")]
    at = press(tick(at, *trashed, table="runs-trash"), "Delete for good")
    assert len(list_trash(three[0].path.parent)) == 2, "it asks"
    assert "can't be undone" in at.warning[0].value
    at = press(at, "Yes, delete 2 runs")
    assert list_trash(three[0].path.parent) == []
    assert names(at) == ["third"]


def test_a_run_that_is_trained_is_not_moved(three):
    lock = RunLock(three[0])
    assert lock.acquire()
    at = press(select(open_main(), "first", "second"), "Move to trash")
    assert "first is running; labkit stop first stops it" in at.error[0].value
    assert names(at) == ["third", "first"]
    lock.release()


def test_archived_runs_are_shown_on_request(three):
    at = press(select(open_main(), "second"), "Archive")
    assert names(at) == ["third", "first"]
    assert read_notes(three[1]).archived
    assert "1 archived, not shown" in words(at)
    at.toggle(key="archived").set_value(True)
    assert "second" in names(checked(at.run()))
    press(select(at, "second"), "Unarchive")
    assert not read_notes(three[1]).archived
    press(at, "Undo")
    assert read_notes(three[1]).archived


def test_tags_of_several_runs(three):
    at = select(open_main(), "first", "second")
    at.text_input(key="runs-add-tag").set_value("<b>paper</b>")
    press(at, "Save")
    assert read_notes(three[0]).tags == read_notes(three[1]).tags == ("<b>paper</b>",)


def test_what_is_changed_in_a_row_loses_nothing_that_others_change(three):
    run = three[0]
    change_notes(run, add=["a", "b, c", 'd"e'], note="first")
    before = row_of(open_main(), "first")["texts"]
    assert before == {"tags": 'a, "b, c", "d""e"', "note": "first"}
    change_notes(run, add=["theirs"], remove=["a"], note="from there")

    def edit(**now: str) -> str | None:
        return actions.edit(str(run.path), before, now)

    assert edit(tags='new, "b, c", a,, , new') == str(run.path)
    assert read_notes(run).tags == ("b, c", "theirs", "new"), "only what was changed is"
    kept = read_notes(run)
    for tags in ("x" * 41, '"' + "x" * 200_000):
        assert edit(tags=tags) is None
    assert edit(note="from here", tags="", name="other") is None
    assert read_notes(run) == kept
    assert edit(name="a/b") is None
    assert {one.name for one in run.path.parent.iterdir()} == {"first", "second", "third"}
    before["note"] = "from there"
    assert edit(note="both", name=" other ") == str(run.path.with_name("other"))
    assert read_notes(RunDirectory(run.path.with_name("other"))).note == "both"
    assert edit(note="late") is None, "it has another name"


def test_the_browser_changes_only_runs_that_are_listed(three, tmp_path):
    path = three[0].path.rename(tmp_path / "elsewhere")
    assert actions.edit(str(path), {"tags": "", "note": ""}, {"tags": "x", "name": "y"}) is None
    assert path.is_dir() and read_notes(RunDirectory(path)).tags == ()


def test_selected_runs_are_compared_and_one_is_opened_also_where_nothing_may_act(three, monkeypatch):
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    at = select(open_main(), "first", "second")
    assert {one.label for one in at.button} == {"Compare", "Open live"}
    at = press(select(open_main(), "first", "second"), "Compare")
    assert sorted(at.multiselect(key="runs").value) == ["first", "second"]
    at = press(select(open_main(), "first"), "Open live")
    assert "Step 120 of 200" in words(at)
    assert at.selectbox(key="run").value == "first"


def test_names_that_differ_in_a_space_are_two_runs(make_run):
    for name in ("x", "x ", " x"):
        make_run(name)
        assert state.find_run(name).name == state.completed(name) == name


def test_a_run_that_appears_while_the_page_is_drawn_is_in_the_next_one(three, make_run, monkeypatch):
    listed = state.listed_runs

    def and_another():
        found = listed()
        make_run("new")
        return found

    monkeypatch.setattr(state, "listed_runs", and_another)
    assert names(open_page("runs", "")) == ["third", "second", "first"]


def test_names_of_any_kind_are_shown_as_text(make_run):
    for name in ("<b>x<b>", "\u202egnirts", "`a` $b$ *c*", "x" * 200, "tab\tnew\nline"):
        make_run(name)
    at = select(open_main(), "<b>x<b>", "`a` $b$ *c*")
    assert len(names(at)) == 5
    assert "<b>x<b>" in words(at)


def test_metrics_that_there_was_no_time_for_follow(three, monkeypatch):
    monkeypatch.setattr("app.views.runs.READ_SECONDS", 0.0)
    monkeypatch.setattr("labkit.run_directory.summary.BLOCK_BYTES", 1024)
    at = open_main()
    assert "the metrics of 3 are still being read" in words(at)
    monkeypatch.setattr("app.views.runs.READ_SECONDS", 60.0)
    assert "still being read" not in words(checked(at.run()))
    assert len(rows_of(at)[0]["loss_curve"]["heights"]) == 40


def test_rows_of_a_training_move_the_table(three):
    at = open_main()
    append(three[0].metrics_path, train_row(121, loss=0.125))
    assert row_of(checked(at.run()), "first")["training_loss"] == "0.125"
    status = json.loads(three[0].status_path.read_text())
    three[0].status_path.write_text(json.dumps({**status, "state": "running", "pid": 2**22 + 1}))
    word, _, _, reason = row_of(checked(at.run()), "first")["state"]
    assert word == "lost" and reason.startswith("process")


def test_the_live_page_and_the_table_show_one_duration(make_run):
    """Both count all sessions of a resumed run, also the steps made twice, and leave out the pause."""
    run = make_run()
    run.metrics_path.unlink()
    rows = [train_row(step, wall_time=1000.0 + step, seconds_per_step=1.0) for step in range(1, 101)]
    more = [train_row(step, wall_time=4950.0 + step) for step in range(51, 101)]
    append(run.metrics_path, *rows, {"resumed_at_step": 50, "wall_time": 5000.0}, *more)
    (summary,) = state.summaries([run], 60)
    assert summary.duration == 150
    shown = words(open_page("live", run))
    assert "Duration 2 min 30 s" in " ".join(shown.split())


# ---- order and groups ------------------------------------------------------------------------------------


@pytest.fixture
def seeds(make_run):
    """Two rates with three seeds each, of which the last failed with another accuracy, and one run apart."""
    for rate, accuracy in ((0.1, 0.5), (0.2, 0.7)):
        for seed, state_ in ((1, "finished"), (2, "finished"), (3, "failed")):
            run = make_run(f"{rate}-{seed}", state_, loss=math.nan if seed == 3 else rate * seed)
            configure(run, learning_rate=rate, seed=seed)
            append(run.metrics_path, evaluation_row(120, "test", accuracy=accuracy + 0.01 * seed**2))
    configure(make_run("apart"), learning_rate=0.3)


def test_groups_are_what_compare_takes_for_one_configuration_and_their_mean_is_of_those_that_finished(seeds):
    rows = rows_of(open_main(group=[table.GROUPS[table.BUT_SEED]], sort="-test"))
    groups = [row for row in rows if "runs" in row]
    assert [(row["name"], row["runs"]) for row in groups] == [
        ("learning_rate 0.2", 3),
        ("learning_rate 0.1", 3),
        ("learning_rate 0.3", 1),
    ]
    accuracies = [0.71, 0.74]
    mean, std = 100 * statistics.mean(accuracies), 100 * statistics.stdev(accuracies)
    assert groups[0]["test"] == f"{mean:.2f} ± {std:.2f} % (2)" == "72.50 ± 2.12 % (2)"
    assert groups[0]["training_loss"] == "0.3 ± 0.1414 (2)"
    assert (groups[0]["state"], groups[0]["model"]) == ("1 failed, 2 finished", "resnet44")
    assert (groups[2]["test"], groups[2]["state"][0]) == (None, "finished")
    inside = [row["name"] for row in rows if row.get("group") == groups[0]["key"]]
    assert inside == ["0.2-3", "0.2-2", "0.2-1"], "in the same order as the groups"


def test_the_error_of_a_group_is_of_one_split(make_run):
    for seed, split in enumerate(("test", "test", "validation"), 1):
        run = make_run(f"run{seed}")
        configure(run, seed=seed, loss="mse", dataset="shapes_size")
        row = {name: value for name, value in evaluation_row(120, split).items() if "accuracy" not in name}
        run.metrics_path.unlink()
        append(run.metrics_path, train_row(1), row | {"mean_absolute_error": 1.0 * seed})
    [group] = [row for row in rows_of(open_main(group=["Data set"])) if "runs" in row]
    assert group["error"] == "1.5 ± 0.7071 (2)"
    assert [row["error"] for row in rows_of(open_main(sort="error"))] == ["1", "2", "3"]


@pytest.mark.parametrize("loss", [0.000179, 1.04447, 16337.25, 4.5e10])
def test_a_loss_is_the_same_text_in_its_row_its_group_and_the_comparison(make_run, loss):
    append(make_run("first").metrics_path, train_row(121, loss=loss))
    at = open_main(group=[table.GROUPS[table.BUT_SEED]])
    [compared] = rows_of(open_page("compare", "first", runs=["first"]), "compare-table")
    shown = {row["training_loss"] for row in [*rows_of(at), *rows_of(open_main()), compared]}
    assert shown == {f"{loss:.4g}"}


def test_a_loss_that_is_no_number_is_that_of_its_group_too(make_run):
    append(make_run().metrics_path, train_row(121, loss=math.nan))
    shown = {row["training_loss"] for row in rows_of(open_main(group=["Data set"]))}
    assert shown == {"NaN"}


def test_groups_are_sorted_by_the_names_that_they_show(seeds):
    rates = [f"learning_rate 0.{number}" for number in (1, 2, 3)]
    for sort, expected in (("name", rates), ("-name", rates[::-1])):
        rows = rows_of(open_main(group=[table.GROUPS[table.BUT_SEED]], sort=sort))
        assert [row["name"] for row in rows if "runs" in row] == expected


def test_steps_are_sorted_by_their_number(make_run):
    for done, total in ((80, 2_000), (900, 2_000), (1_000, 0), (20_000, 90_000)):
        make_run(f"run {done}", steps=2, status={"step": done, "total_steps": total})
    shown = [row["steps"] for row in rows_of(open_main(columns=["Steps"], sort="steps"))]
    assert shown == ["80 of 2,000", "900 of 2,000", "1,000", "20,000 of 90,000"]


def test_only_the_last_step_is_all_of_the_progress(make_run):
    for done in (1, 1_993, 1_999, 2_000):
        make_run(f"{done}", "interrupted", steps=1, status={"step": done, "total_steps": 2_000})
    found = {row["name"]: row["progress"] for row in rows_of(open_main())}
    assert found == {"1": 0, "1993": 99, "1999": 99, "2000": 100}


def test_runs_are_grouped_by_any_settings_together(seeds):
    at = open_main(group=["seed"])
    assert sorted((row["name"], row["runs"]) for row in rows_of(at) if "runs" in row) == [
        ("seed 0", 1),
        ("seed 1", 2),
        ("seed 2", 2),
        ("seed 3", 2),
    ]
    at = open_main(group=["seed", "learning_rate"])
    assert sum("runs" in row for row in rows_of(at)) == 7


def test_runs_of_other_programs_are_grouped_by_what_they_recorded(make_run):
    for width, seed in ((7, 1), (7, 2), (8, 1)):
        settings = {"width": width, "seed": seed}
        record = {"recorded_by": "labkit.start_run", "settings": settings}
        make_run(f"{width}-{seed}").config_path.write_text(json.dumps(record))
    for by in ("width", table.GROUPS[table.BUT_SEED]):
        rows = rows_of(open_main(group=[by], columns=["width"]))
        assert {(row["name"], row["runs"], row["width"]) for row in rows if "runs" in row} == {
            ("width 7", 2, "7"),
            ("width 8", 1, "8"),
        }


@pytest.mark.parametrize(
    ("sort", "first", "last"), [("training_loss", 0.1, 0.4), ("-training_loss", 0.4, 0.1)]
)
def test_what_has_no_value_comes_last_in_both_directions(seeds, sort, first, last):
    losses = [row["training_loss"] for row in rows_of(open_main(sort=sort, filter="0."))]
    assert losses == [f"{loss:.4g}" for loss in (first, 0.2, 0.2, last)] + ["NaN", "NaN"]


def test_an_address_that_sorts_by_what_is_not_shown_leaves_the_newest_first(three):
    for sort in ("nothing", "-", "note"):
        assert names(open_main(sort=sort)) == ["third", "second", "first"]


def test_values_of_any_kind_can_be_sorted(make_run):
    configure(make_run("one"), learning_rate=0.5)
    huge = make_run("two")
    write_json_atomic(huge.config_path, {"optimizer": {"learning_rate": 10**400}})
    for sort in ("loss_curve", "-loss_curve", "learning_rate", "tags", "state"):
        at = open_page("runs", "", sort=sort, columns=["State", "learning_rate"])
        assert len(rows_of(at)) == 2
