"""The Compare page: results, configurations over their seeds, which of two is better, on which images."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from app.charts.board import Line
from app.charts.smoothing import WINDOW
from app.comparing import comparisons, relations
from app.comparing.curves import colors_of, mean_and_range
from app.comparing.plots import Dot, axis_of, scatter
from labkit.analysis.results import grouped, read_results
from labkit.experiments.comparison.files import Request, request_path
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.boards import charts, parts
from tests.app.conftest import change_environment, configure, rewrite_predictions, write_predictions
from tests.app.pages import button, checked, html_of, markup_of, open_page, press, rows_of, tick, words
from tests.app.rows import append, evaluation_row, train_row

HTML = "<img src=x onerror=alert(1)>"


@pytest.fixture
def tested(make_run):
    """Return a function that makes a finished run with this test accuracy, data, and configuration."""

    def make(name: str, accuracy: float = 0.8, checksum: str = "a" * 64, **values) -> RunDirectory:
        run = make_run(name)
        configure(run, num_layers=8, **values)
        data = {**run.read_environment()["data"], "checksum": checksum}
        change_environment(run, data=data, parameters=77)
        append(run.metrics_path, evaluation_row(120, "test", accuracy=accuracy))
        return run

    return make


def compare(*runs: str, **chosen):
    at = open_page("compare", runs[0])
    at.session_state["runs"] = list(runs)
    for key, value in chosen.items():
        at.session_state[key] = value
    return checked(at.run())


@pytest.fixture
def sweep(tested):
    for rate in (0.1, 0.2):
        for seed in (0, 1, 2):
            tested(f"r{rate}-{seed}", 0.7 + rate + 0.01 * seed, learning_rate=rate, seed=seed)
    return [f"r{rate}-{seed}" for rate in (0.1, 0.2) for seed in (0, 1, 2)]


def test_seeds_are_one_row_with_mean_and_spread_and_a_switch_shows_single_runs(sweep):
    at = compare(*sweep)
    rows = rows_of(at, "compare-table")
    groups = [row for row in rows if "group" not in row]
    assert [row["name"] for row in groups] == ["learning_rate 0.1", "learning_rate 0.2"]
    assert [row["test_accuracy"] for row in groups] == ["81.00 ± 1.00 % (3)", "91.00 ± 1.00 % (3)"]
    place = list(rows[0]).index("test_accuracy") - list(rows[0]).index("state")
    assert [place in row["best"] for row in groups] == [False, True], "the best is tinted"
    assert [row["name"] for row in rows if "group" in row] == sweep
    assert [row["test_accuracy"] for row in rows if "group" in row][:2] == ["80.00 %", "81.00 %"]
    assert not {"setting job_dir", "setting data_dir", "setting seed"} & set(rows[0])
    loss, _ = charts(at)
    drawn = [loss.lines[f"{row['name']} (3 runs)"] for row in groups]
    assert [row["mark"] for row in groups] == [{"color": one.color, "dash": [*one.dash]} for one in drawn]
    assert drawn[0].color != drawn[1].color and not any(row.get("mark") for row in rows if "group" in row)
    at.session_state["compare-table"] = {"sorted": "-test_accuracy"}
    at.session_state["compare-sort"] = "-test_accuracy"
    rows = rows_of(checked(at.run()), "compare-table")
    assert rows[0]["name"] == "learning_rate 0.2"
    at.toggle(key="single").set_value(True)
    rows = rows_of(checked(at.run()), "compare-table")
    assert [row["name"] for row in rows] == sweep[::-1]
    assert at.selectbox(key="a").value != at.selectbox(key="b").value


def test_the_answer_is_in_words_and_says_what_it_rests_on(sweep):
    text = words(compare(*sweep))
    assert (
        "B is better: B's test accuracy is 10.00 points higher (95 % interval +7.73 to +12.27 points)" in text
    )
    assert "Welch's interval from 3 runs of A and 3 of B" in text
    assert "Not compared on single test images: r0.1-0 has no predictions, and no checkpoint" in text


def test_of_single_runs_the_same_images_are_compared_and_link_to_their_pages(tested):
    for name, seed in (("first", 0), ("second", 1)):
        run = tested(name, learning_rate=0.1 + seed)
        arrays = write_predictions(run, 200)
        rewrite_predictions(run, probabilities=arrays["probabilities"][:: -1 if seed else 1])
    at = compare("first", "second", **{"differing-images": True})
    text = words(at)
    assert "One seed each says nothing about the spread over seeds" in text
    assert "McNemar's exact test" in text
    assert re.search(r"are right in run second of B( \(step \d+\))? only and \d+ in run first of A", text)
    assert re.search(r"1–\d+ of \d+, only B is right", text)
    html = html_of(at)
    assert 'href="image?run=second&amp;split=test&amp;index=' in html
    assert "&lt;b&gt;star&lt;/b&gt;" in html and "<b>star" not in html


def test_other_data_is_named_instead_of_a_test(tested):
    for name, checksum in (("first", "a" * 64), ("second", "b" * 64)):
        write_predictions(tested(name, checksum=checksum))
    text = words(compare("first", "second"))
    assert "Not compared on single test images: their data sets differ" in text
    assert "trained on different data" in text


def test_losses_of_different_functions_have_no_best_and_are_not_suggested(tested):
    tested("classes", 0.7)
    tested("numbers", loss="mse", dataset="shapes_size")
    at = compare("classes", "numbers")
    rows = rows_of(at, "compare-table")
    best = {list(row)[-len(row["cells"]) :][place] for row in rows for place in row["best"]}
    assert "test_loss" in rows[0] and "test_loss" not in best and "test_accuracy" in best
    assert at.selectbox(key="by").value == "Test accuracy"
    at = checked(at.selectbox(key="by").set_value("Test loss").run())
    assert "test loss can't be compared: loss differs" in words(at)
    losses = "Test loss (loss), Validation loss (loss), Training loss (loss)"
    assert f"Can't be compared, because a setting differs: {losses}." in words(at)
    assert not [part for part in parts(at, "labkit_drawing") if ">A</text>" in markup_of(part)]


def tinted(at) -> dict[str, list[str]]:
    """Return by column the names of the rows whose cell is tinted."""
    found: dict[str, list[str]] = {}
    for row in rows_of(at, "compare-table"):
        for place in row.get("best", []):
            found.setdefault(list(row)[-len(row["cells"]) :][place], []).append(row["name"])
    return found


def test_all_that_are_equally_good_are_tinted_and_none_where_all_are(tested):
    for name, accuracy, rate in (("a", 0.8, 0.1), ("b", 0.8, 0.2), ("c", 0.7, 0.3)):
        tested(name, accuracy, learning_rate=rate)
    at = compare("a", "b", "c")
    assert "stand out" not in words(at), "each has a colour already"
    assert tinted(at) == {"test_accuracy": ["a", "b"]} and "Can't be compared" not in words(at)


def test_a_run_that_failed_is_not_the_fastest(tested, make_run):
    for name, rate in (("long", 0.1), ("longer", 0.2)):
        tested(name, learning_rate=rate)
    for name, rate, steps in (("short", 0.3, 3), ("shorter", 0.4, 2)):
        configure(make_run(name, "failed", steps=steps), num_layers=8, learning_rate=rate)
    at = compare("long", "longer", "short")
    assert "short" not in [name for names in tinted(at).values() for name in names]
    assert (at.selectbox(key="a").value, at.selectbox(key="b").value) == ("long", "longer")
    assert tinted(compare("short", "shorter"))["seconds"] == ["shorter"], "nothing has finished"


def test_a_loss_that_is_no_number_stands_in_the_table(tested):
    for name, loss, rate in (("one", np.nan, 0.1), ("two", np.inf, 0.2), ("three", 0.5, 0.3)):
        append(tested(name, learning_rate=rate).metrics_path, train_row(121, loss=loss))
    rows = rows_of(compare("one", "two", "three"), "compare-table")
    assert [row["training_loss"] for row in rows] == ["NaN", "∞", "0.5"]


def test_two_seeds_of_one_configuration_lead_to_single_runs(tested):
    for seed in (1, 2):
        tested(f"seed{seed}", 0.7 + 0.1 * seed, seed=seed)
    at = compare("seed1", "seed2")
    assert "one configuration" in words(at) and "second run" not in words(at)
    at.toggle(key="single").set_value(True)
    assert "B's test accuracy is 10.00 points higher" in words(checked(at.run()))


def test_configurations_are_sorted_by_the_names_that_they_show(sweep):
    at = compare(*sweep[::-1])
    for sort, expected in (("name", ["0.1", "0.2"]), ("-name", ["0.2", "0.1"])):
        at.session_state["compare-sort"] = sort
        rows = rows_of(checked(at.run()), "compare-table")
        assert [row["name"].split()[1] for row in rows if "group" not in row] == expected


def test_the_gallery_says_that_it_is_a_class_that_has_no_image(tested):
    for name in ("first", "second"):
        arrays = write_predictions(tested(name, learning_rate=0.1 * len(name)), 200)
    right = np.eye(3, dtype=np.float32)[arrays["labels"]]
    rewrite_predictions(RunDirectory(tested("third").path.with_name("second")), probabilities=right)
    other = np.where(arrays["labels"][:, None] == 0, right, np.roll(right, 1, axis=1))
    rewrite_predictions(RunDirectory(tested("third").path.with_name("first")), probabilities=other)
    at = compare("first", "second", **{"differing-images": True})
    at.session_state["compare-class"] = 0
    assert "No image of this class was fixed by B." in words(checked(at.run()))


def test_deleted_and_damaged_runs_leave_the_others(tested):
    runs = [
        tested(name, learning_rate=rate) for name, rate in (("first", 0.1), ("second", 0.3), ("third", 0.4))
    ]
    write_predictions(runs[0])
    at = compare("first", "second", "third")
    runs[0].config_path.write_bytes(b"\xff\x00")
    assert "Not every configuration can be read" in words(checked(at.run()))
    for path in (runs[0].metrics_path, runs[0].environment_path, runs[0].predictions_path / "test.npz"):
        path.write_bytes(path.read_bytes()[:90])
    assert len(rows_of(checked(at.run()), "compare-table")) == 3
    shutil.rmtree(runs[1].path)
    assert len(rows_of(checked(at.run()), "compare-table")) == 2
    assert "Not found, perhaps deleted" in words(at)


def test_one_run_and_names_with_html(tested):
    name = HTML.replace("/", "")
    tested(name)
    assert "Choose a second run" in words(compare(name))
    tested(name + "2", learning_rate=0.3)
    at = compare(name, name + "2")
    raw = html_of(at) + "".join(json.loads(part.json)["markup"] for part in parts(at, "labkit_drawing"))
    assert "onerror" in raw and "<img src=x" not in raw


def test_fifty_runs_share_colours_and_the_chosen_ones_stand_out(tested):
    [result] = read_results({"one": tested("one")})
    many = [
        dataclasses.replace(result, label=f"{n}", seed=n % 5, settings={"learning_rate": n // 5})
        for n in range(50)
    ]
    groups = grouped(many)
    colors = colors_of(groups, [groups[2].name, groups[7].name]).values()
    chosen, others = ([color for color, is_chosen in colors if is_chosen is one] for one in (True, False))
    assert (len(chosen), len(set(chosen)), len(set(others))) == (10, 2, 1)
    few = colors_of(grouped(many[:8]), [])
    assert len({color for color, _ in few.values()}) == 2, "runs of one configuration share one"
    single = colors_of(grouped(many[:8], seeds_together=False), [])
    assert len({color for color, _ in single.values()}) == 8
    tested("two", learning_rate=0.3)
    loss, accuracy = charts(compare("one", "two"))
    assert (loss.title, accuracy.title) == ("Training loss", "Validation accuracy")
    for lines in (loss.lines, accuracy.lines):
        assert list(lines) == ["one", "two"]
        assert len({line.color for line in lines.values()}) == 2


def test_the_page_says_that_its_curves_are_smoothed(tested):
    for name, rate in (("one", 0.1), ("two", 0.2)):
        tested(name, learning_rate=rate)
    at = compare("one", "two")
    assert "Curves of the training are smoothed (weight of the past: 0.6)." in words(at)
    at = compare("one", "two", smooth=WINDOW, width=30)
    assert "Curves of the training are smoothed (window, in steps: 30)." in words(at)
    assert "smoothed" not in words(compare("one", "two", smoothing=0.0))


def test_of_many_configurations_ticked_rows_stand_out(tested):
    runs = [tested(f"run{number}", learning_rate=0.1 * number) for number in range(1, 10)]
    at = compare(*(run.name for run in runs))
    assert "Tick up to 7 rows to make their curves stand out." in words(at)
    loss, _ = charts(tick(at, str(runs[7].path), table="compare-table"))
    marked = {row["name"]: row["mark"] for row in rows_of(at, "compare-table")}
    assert [name for name, mark in marked.items() if mark] == ["run8"]
    [other] = {line.color for name, line in loss.lines.items() if name != "run8"}
    assert loss.lines["run8"].color != other, "all others are of one colour"


def test_seeds_have_a_mean_and_a_range_where_all_have_points():
    def line(name, steps, values):
        return Line(name, np.array(steps, float), np.array(values, float), "#123456", "marked")

    several = [line("a", [1, 2, 3, 4], [4, 1, 2, 9]), line("b", [2, 3, 5], [3, np.inf, 1]), line("c", [], [])]
    high, low, mean, *rest = mean_and_range("both", several)
    assert {one.style for one in rest} == {"thin"}, "before and after the steps that both have"
    assert [(one.name, one.x.tolist()) for one in rest] == [("a", [1]), ("a", [4]), ("b", [5])]
    assert low.x.tolist() == high.x.tolist() == mean.x.tolist() == [2, 3]
    assert (low.y.tolist(), high.y.tolist(), mean.y.tolist()) == ([1, 2], [3, np.inf], [2, np.inf])
    assert (mean.name, mean.style, low.style, low.band) == ("both", "marked", "edge", "")
    assert high.band == low.name  # the browser fills from the upper line to the lower one
    apart = mean_and_range("both", [several[0], line("b", [0.5, 1.5], [1, 2])])  # seconds of two runs
    assert [(one.name, one.style) for one in apart] == [("a", "thin"), ("b", "thin")]
    assert mean_and_range("one", [several[0], several[2]]) == [several[0]]
    tested = mean_and_range("both", [line("a", [9], [0.25]), line("b", [9], [0.75])])
    assert [one.y.tolist() for one in tested] == [[0.75], [0.25], [0.5]]


def test_a_scatter_plot_tells_each_runs_values_and_escapes_names():
    rates = axis_of("learning_rate", [0.001, None, 0.1])
    kinds = axis_of(HTML, ["a", "b", None])
    assert rates.logarithmic and kinds.names == ("a", "b", "–")
    svg = scatter([Dot(HTML, 0.001, "a", "#000000"), Dot("two", 0.1, "b", "#000000")], rates, kinds)
    assert "<title>two: learning_rate 0.1" in svg
    assert "<img" not in svg and "&lt;img" in svg


def test_a_comparison_of_labkit_compare_is_shown_and_all_its_runs_can_be_compared(
    tested, runs_folder, monkeypatch
):
    folder = runs_folder / "models"
    folder.mkdir()
    for seed in (0, 1):
        tested("moved", seed=seed).path.rename(folder / f"resnet8-seed{seed}")
    tested("first")
    budget = {"dataset": "shapes", "train_steps": 120, "train_batch_size": 128, "eval_batch_size": 100}
    request = Request(("resnet8",), 2, budget, "a" * 64)
    write_json_atomic(request_path(folder), dataclasses.asdict(request))
    at = compare("first", comparisons=True)
    assert "resnet8" in words(at)
    at = press(at, "Compare all its runs (2)")
    assert at.session_state["runs"] == ["resnet8-seed0", "resnet8-seed1"]
    assert rows_of(at, "compare-table")[0]["seed"] == "0, 1"
    monkeypatch.setattr(comparisons, "MAX_RUNS", 1)
    assert button(checked(at.run()), "Compare 1 of its runs (2)")
    request_path(folder).write_text("{")
    checked(at.run())
    assert "comparison.json can't be read" in words(at)


def test_parallel_coordinates_end_with_the_result_and_say_what_they_leave_out(tested, monkeypatch):
    numbers = {"loss": "mse", "dataset": "shapes_size"}
    fractions = ("learning_rate", "momentum", "weight_decay", "batch_norm_decay", "gradient_clip_norm")
    for size in (1, 2):
        run = tested(str(size))
        row = evaluation_row(120, "test", mean_absolute_error=1.0 / size)
        run.metrics_path.unlink()
        append(run.metrics_path, {name: row[name] for name in row if "accuracy" not in name})
        sizes = dict.fromkeys(("train_batch_size", "train_steps"), 16 * size)
        configure(run, num_layers=8, **numbers, **dict.fromkeys(fractions, 0.1 * size), **sizes)

    def axes(at) -> list[str]:
        [figure] = [json.loads(one.proto.spec) for one in at.get("plotly_chart")]
        return [axis["label"] for axis in figure["data"][0]["dimensions"]]

    at = compare("1", "2", parallel=True)
    assert {*axes(at)} == {*fractions, *sizes, "Test mean absolute error"}
    assert axes(at)[-1] == "Test mean absolute error" and "Left out" not in words(at)
    monkeypatch.setattr(relations, "MOST_AXES", 6)
    left = axes(at)[:2]
    assert axes(checked(at.run()))[-1] == "Test mean absolute error" and not {*left} & {*axes(at)}
    assert f"Left out: {left[0]}, {left[1]}." in words(at)


def test_the_scatter_plot_says_how_many_runs_it_shows(tested, make_run):
    tested("one")
    tested("two", learning_rate=0.3)
    assert "have both values" not in words(compare("one", "two"))
    configure(make_run("without test"), num_layers=8, learning_rate=0.5)
    assert "2 of 3 runs have both values." in words(compare("one", "two", "without test"))
