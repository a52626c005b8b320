"""The Compare page: results, configurations over their seeds, which of two is better, on which images."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from app.comparing.curves import colors_of
from app.comparing.plots import Dot, axis_of, scatter
from labkit.analysis.run_results.groups import grouped
from labkit.analysis.run_results.results import read_results
from labkit.config import Config
from labkit.experiments.comparison.files import Request, request_path
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import charts
from tests.app.conftest import evaluation_row, write_predictions
from tests.app.test_pages import checked, open_page, words

HTML = "<img src=x onerror=alert(1)>"


@pytest.fixture
def trained(make_run):
    """Return a function that makes a finished run with this test accuracy, data, and configuration."""

    def make(name: str, accuracy: float = 0.8, checksum: str = "a" * 64, **values) -> RunDirectory:
        run = make_run(name)
        config = Config.from_flat({"dataset": "shapes", "num_layers": 8, **values})
        write_json_atomic(run.config_path, config.replace({"job_dir": str(run.path)}).to_json())
        data = {**run.read_environment()["data"], "checksum": checksum}
        write_json_atomic(run.environment_path, {**run.read_environment(), "data": data, "parameters": 77})
        writer = MetricsWriter(run.metrics_path)
        writer.append([evaluation_row(120, "test", accuracy=accuracy)])
        writer.close()
        return run

    return make


def compare(*runs: str, **chosen):
    at = open_page("compare", runs[0])
    at.session_state["runs"] = list(runs)
    for key, value in chosen.items():
        at.session_state[key] = value
    return checked(at.run())


def drawn(at) -> list[str]:
    """Return the SVGs of the page."""
    parts = [part.proto for part in at.get("bidi_component") if part.proto.component_name == "labkit_drawing"]
    return [json.loads(part.json)["markup"] for part in parts]


@pytest.fixture
def sweep(trained):
    for rate in (0.1, 0.2):
        for seed in (0, 1, 2):
            trained(f"r{rate}-{seed}", 0.7 + rate + 0.01 * seed, learning_rate=rate, seed=seed)
    return [f"r{rate}-{seed}" for rate in (0.1, 0.2) for seed in (0, 1, 2)]


def test_seeds_are_one_row_with_mean_and_spread_and_a_switch_shows_single_runs(sweep):
    at = compare(*sweep)
    table = at.dataframe[0].value
    assert table["Configuration"].tolist() == ["learning_rate 0.1", "learning_rate 0.2"]
    assert table["Test accuracy"].tolist() == pytest.approx([81, 91])
    assert "91.00 ± 1.00 % (3)".encode() in at.dataframe[0].proto.arrow_data.styler.display_values
    assert not {"job_dir", "data_dir", "seed"} & set(table)
    at.toggle(key="single").set_value(True)
    table = checked(at.run()).dataframe[0].value
    assert table["Configuration"].tolist() == sweep
    assert at.selectbox(key="a").value != at.selectbox(key="b").value


def test_the_answer_is_in_words_and_says_what_it_rests_on(sweep):
    text = words(compare(*sweep))
    assert (
        "B is better: B's test accuracy is 10.00 points higher (95 % interval +7.73 to +12.27 points)" in text
    )
    assert "Welch's interval from 3 runs of A and 3 of B" in text
    assert "Not compared on single test images: r0.1-0 has no predictions, and no checkpoint" in text


def test_of_single_runs_the_same_images_are_compared_and_link_to_their_pages(trained):
    for name, seed in (("first", 0), ("second", 1)):
        run = trained(name, learning_rate=0.1 + seed)
        arrays = write_predictions(run, 200, seed=0)
        shown = arrays["probabilities"][::-1] if seed else arrays["probabilities"]
        np.savez(run.predictions_path / "test.npz", **{**arrays, "probabilities": shown})
    at = compare("first", "second", **{"differing-images": True})
    text = words(at)
    assert "One seed each says nothing about the spread over seeds" in text
    assert "McNemar's exact test" in text
    assert re.search(r"1–\d+ of \d+: A is wrong and B is right", text)
    html = "".join(element.proto.body for element in at.get("html"))
    assert 'href="image?run=second&amp;split=test&amp;index=' in html
    assert "&lt;b&gt;star&lt;/b&gt;" in html and "<b>star" not in html


def test_other_data_is_named_instead_of_a_test(trained):
    for name, checksum in (("first", "a" * 64), ("second", "b" * 64)):
        write_predictions(trained(name, checksum=checksum))
    text = words(compare("first", "second"))
    assert "Not compared on single test images: their data sets differ" in text
    assert "trained on different data" in text


@pytest.mark.parametrize("damage", ["deleted", "torn", "empty", "binary", "no metrics"])
def test_damaged_and_deleted_runs_leave_the_others(trained, damage):
    run = trained("first")
    trained("second", learning_rate=0.3)
    trained("third", learning_rate=0.4)
    at = compare("first", "second", "third")
    if damage == "deleted":
        shutil.rmtree(run.path)
    elif damage == "no metrics":
        run.metrics_path.unlink()
    else:
        text = {"torn": run.config_path.read_bytes()[:90], "empty": b"", "binary": b"\xff\x00"}[damage]
        run.config_path.write_bytes(text)
        run.metrics_path.write_bytes(text)
        run.environment_path.write_bytes(text)
        write_predictions(run)
        (run.predictions_path / "test.npz").write_bytes(text)
    table = checked(at.run()).dataframe[0].value
    assert len(table) == (2 if damage == "deleted" else 3)
    assert {"second", "third"} <= set(table["Configuration"])
    assert ("Not found, perhaps deleted" in words(at)) is (damage == "deleted")


def test_one_run_none_and_names_with_html(trained, runs_folder):
    assert "labkit train --preset smoke" in words(open_page("compare", ""))
    name = HTML.replace("/", "")
    trained(name)
    assert "Choose a second run" in words(compare(name))
    trained(name + "2", learning_rate=0.3)
    at = compare(name, name + "2")
    raw = "".join(element.proto.body for element in at.get("html")) + "".join(drawn(at))
    assert "onerror" in raw and "<img src=x" not in raw


def test_fifty_runs_share_colours_and_the_chosen_ones_stand_out(trained):
    runs = {f"s{number}": trained(f"s{number}", seed=number) for number in range(3)}
    [result, *_] = read_results(runs)
    many = [
        dataclasses.replace(
            result, label=f"{rate}-{seed}", seed=seed, settings={**result.settings, "learning_rate": rate}
        )
        for rate in range(10)
        for seed in range(5)
    ]
    groups = grouped(many)
    assert len(groups) == 10
    colors = colors_of(groups, [groups[2].name, groups[7].name])
    assert sum(outstanding for _, outstanding in colors.values()) == 10
    assert len({color for color, outstanding in colors.values() if outstanding}) == 2
    assert len({color for color, outstanding in colors.values() if not outstanding}) == 1
    few = colors_of(grouped(many[:8]), [])
    assert len({color for color, _ in few.values()}) == 8
    board = charts(compare("s0", "s1"))[0]
    assert {line.style for line in board.lines.values()} == {"line"}


def test_a_scatter_plot_tells_each_runs_values_and_escapes_names():
    rates = axis_of("learning_rate", [0.001, None, 0.1])
    kinds = axis_of(HTML, ["a", "b", None])
    assert rates.logarithmic and kinds.names == ("a", "b", "–")
    svg = scatter([Dot(HTML, 0.001, "a", "#000000"), Dot("two", 0.1, "b", "#000000")], rates, kinds)
    assert "<title>two: learning_rate 0.1" in svg
    assert "<img" not in svg and "&lt;img" in svg


def test_a_comparison_of_labkit_compare_is_shown_and_all_its_runs_can_be_compared(trained, runs_folder):
    folder = runs_folder / "models"
    folder.mkdir()
    for seed in (0, 1):
        trained("moved", seed=seed).path.rename(folder / f"resnet8-seed{seed}")
    trained("first")
    budget = {"dataset": "shapes", "train_steps": 120, "train_batch_size": 128, "eval_batch_size": 100}
    request = Request(("resnet8",), 2, budget, "a" * 64)
    write_json_atomic(request_path(folder), dataclasses.asdict(request))
    at = compare("first", comparisons=True)
    [button] = [one for one in at.button if one.label == "Compare all its runs (2)"]
    assert "resnet8" in words(at)
    button.click()
    assert checked(at.run()).session_state["runs"] == ["resnet8-seed0", "resnet8-seed1"]
    assert at.dataframe[0].value["Seed"].tolist() == ["0, 1"]
    request_path(folder).write_text("{")
    checked(at.run())
    assert "comparison.json can't be read" in words(at)
