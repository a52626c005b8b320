"""The arithmetic of the benchmarks, their reports, and the results that are kept."""

import dataclasses
import json
import platform
from datetime import date

import psutil
import pytest

from benchmarks import __main__ as summary
from benchmarks import (
    ablation,
    accuracy,
    common,
    dashboard_curves,
    follow,
    forms,
    input_pipeline,
    inspection,
    links,
    scaling,
    telemetry,
    train_step,
    trainings,
    transfer,
)
from benchmarks.common import ROOT, take_turns
from benchmarks.forms import Form
from benchmarks.report import Figure, Goal, Report, read_figures
from labkit.config import Config
from labkit.config.presets import merged_with_preset, preset_values
from labkit.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("bound", "met"),
    [("at least", [False, True, True]), ("at most", [True, True, False]), ("below", [True, False, False])],
)
def test_the_median_decides_on_goals_as_their_words_say(bound, met):
    goal = Goal(bound, 1.3)
    assert [Figure("ratio", "x", (0.1, 9.0, value), goal).met for value in (1.29, 1.3, 1.31)] == met
    assert not goal.is_met(float("nan"))
    with pytest.raises(ValueError, match="never measured"):
        Figure("ratio", "x", ())


def test_a_report_holds_raw_repeats_machine_and_configuration_and_no_paths(tmp_path, capsys):
    figures = [
        Figure("ratio", "x", (1.5, 1.1, 1.4), Goal("at least", 1.3)),
        Figure("speed", "images/s", (300.0,)),
    ]
    report = Report("name", "Is it fast?\n\nMore.", {"repeats": 3, "output": tmp_path})
    path = report.finish(figures, tmp_path / "made")
    written = json.loads(path.read_text())
    ratio = written["figures"][0]
    assert (ratio["repeats"], ratio["median"], ratio["met"]) == ([1.5, 1.1, 1.4], 1.4, True)
    assert (ratio["minimum"], ratio["maximum"]) == (1.1, 1.5)
    assert written["configuration"] == {"repeats": 3} and written["question"] == "Is it fast?"
    assert written["hardware"]["memory_bytes"] == psutil.virtual_memory().total
    assert written["versions"]["tensorflow"]
    assert str(tmp_path) not in path.read_text()
    path.write_text(path.read_text().replace('"met": true', '"met": false'))
    assert read_figures(path) == figures, "a verdict comes from the raw repeats, not from the file"
    assert "met" in capsys.readouterr().out


def test_the_summary_shows_goals_of_what_was_measured_and_what_failed(tmp_path, monkeypatch, capsys):
    figures = [Figure("ratio", "x", (1.0,), Goal("at least", 1.3)), Figure("told only", "s", (1.0,))]
    Report("telemetry", "?", {}).finish(figures, tmp_path)
    capsys.readouterr()
    summary.main(["--summary", "--output", str(tmp_path), "telemetry", "startup"])
    shown = capsys.readouterr().out
    assert "missed" in shown
    assert "told only" not in shown
    assert "startup: no result" in shown
    assert f"Python {platform.python_version()}" in shown
    monkeypatch.setattr(summary, "_run", lambda name, options: name != "startup")
    assert summary.main(["startup", "telemetry", "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "startup failed" in shown.err
    assert "ratio" in shown.out


def test_every_script_is_run_by_the_summary():
    """A script's docstring begins with the question that it answers."""
    first = {path.stem: path.read_text().partition("\n")[0] for path in (ROOT / "benchmarks").glob("*.py")}
    assert {name for name, line in first.items() if line.endswith("?")} == set(summary.SCRIPTS)


def test_what_other_classes_gain_is_counted_seed_by_seed():
    found = {
        f"{transfer.SCRATCH}, rate 0.05": [30.0, 42.0],
        f"{transfer.SCRATCH}, rate 0.1": [50.0, 40.0],
        transfer.TUNED: [58.0, 44.0],
        transfer.GRADUAL: [49.0, 52.0],
    }
    gains = [figure.repeats for figure in transfer.figures(found) if figure.goal is not None]
    assert gains == [(8.0, 4.0), (-1.0, 12.0)]


def test_the_ratio_is_between_the_best_forms_repeat_by_repeat():
    speeds = {
        Form("labkit train", "", "default"): [300.0, 200.0],
        Form("labkit train", "", "keeping"): [400.0, 300.0],
        Form("model.fit", "plain", "default"): [200.0, 240.0],
        Form("model.fit", "xla", "default"): [250.0, 250.0],
        Form("PyTorch eager", "", "default"): [320.0, 300.0],
    }
    keras, torch, *rest = forms.figures({"float32": speeds}, train_step.LABKIT, train_step.GOALS)
    assert keras.name == "float32: labkit train (keeping) over model.fit (xla, default)"
    assert (keras.repeats, keras.goal) == ((1.6, 1.2), Goal("at least", 1.5))
    assert torch.name == "float32: labkit train (keeping) over PyTorch eager (default)"
    assert (torch.repeats, torch.goal) == ((1.25, 1.0), Goal("at least", 1.1))
    assert {figure.name for figure in rest} == {f"float32: {form}" for form in speeds}
    assert all(figure.goal is None for figure in rest)


def test_turns_go_back_and_forth():
    order = []
    first, second = Form("a", "", "default"), Form("b", "", "default")
    turns = {first: lambda: order.append("a") or 1.0, second: lambda: order.append("b") or 2.0}
    assert take_turns(turns, 3) == {first: [1.0] * 3, second: [2.0] * 3}
    assert "".join(order) == "abbaab"


def test_pipelines_are_compared_with_the_better_peer():
    speeds = {"memory": [90.0], "streaming": [60.0], "per example, a": [20.0], "per example, b": [30.0]}
    waits = {"memory": [1.0], "streaming": [3.0]}
    figures = input_pipeline.figures(speeds, waits, {"JPEGs": [5.0]}, {"JPEGs": [4.0]})
    assert [figure.repeats for figure in figures[:2]] == [(3.0,), (2.0,)]
    assert [figure.met for figure in figures[:5]] == [True, False, True, False, True]


def test_telemetry_is_a_share_of_the_step_of_the_same_repeat():
    costs = {telemetry.TELEMETRY: [0.002, 0.002], telemetry.SUMMARIES: [0.004, 0.004]}
    figures = telemetry.figures([0.2, 0.4], costs)
    assert figures[0].repeats == pytest.approx((1.0, 0.5))
    assert [figure.goal is None for figure in figures[:2]] == [False, True]


def test_an_inspected_step_costs_a_share_of_as_many_steps_as_it_stands_for():
    name = "--inspect-every-steps 50"
    steps = {"plain step": [[0.2, 0.4, 0.2], [0.2]], name: [[0.3, 0.4, 0.4], [0.3]]}
    nothing = "three callbacks that do nothing"
    steps[nothing] = steps["plain step"]
    calls = {nothing: [[0.0002, 0.0001, 0.0003], [0.0002]]}
    share, called, plain, *_ = inspection.figures(steps, calls)
    assert called.repeats == pytest.approx((0.1, 0.1))
    assert share.repeats == pytest.approx((100 * 0.5 / 50, 100 * 0.5 / 50))
    assert share.goal and plain.repeats == pytest.approx((200.0, 200.0))


def test_results_that_are_committed_are_of_this_format():
    for path in sorted((common.RESULTS).glob("*.json")):
        assert path.stem in summary.SCRIPTS
        least = 3 if path.stem == "accuracy" else 5  # seeds of whole trainings
        ratios = [figure for figure in read_figures(path) if figure.unit == "x"]
        measured = [figure for figure in ratios if not figure.name.endswith(", predicted")]
        assert all(len(figure.repeats) >= least for figure in measured), path


def test_the_follower_is_compared_turn_by_turn_and_has_to_be_at_work():
    figures = follow.figures([400.0, 300.0, 200.0], [396.0, 303.0, 190.0], [99.0, 10.0, 20.0])
    assert figures[0].repeats == pytest.approx((0.99, 1.01, 0.95))
    assert [figure.met for figure in figures if figure.goal] == [True, False]


def test_clusters_are_compared_with_one_process_of_the_same_repeat():
    runs = {
        "one process": [scaling.Started(10.0, 400.0), scaling.Started(8.0, 300.0)],
        "sync": [scaling.Started(14.0, 360.0), scaling.Started(16.0, 240.0)],
        "async": [scaling.Started(30.0, 380.0), scaling.Started(24.0, 270.0)],
    }
    figures = {figure.name: figure for figure in scaling.figures(runs)}
    assert figures["two sync workers over one process, speed"].repeats == pytest.approx((0.9, 0.8))
    assert figures["two async workers over one process, speed"].repeats == pytest.approx((0.95, 0.9))
    assert figures["two sync workers over one process, start to first step"].repeats == pytest.approx(
        (1.4, 2)
    )
    assert [figure.goal is None for figure in figures.values()] == [False, False, False, True] + 6 * [True]


def test_the_prediction_of_a_cluster_is_its_step_and_its_bytes():
    def expected(mode: str, workers: int, link: str, sent: float = 1e6, received: float = 1e6) -> float:
        case = links.Case(mode, workers, link)
        return links.predicted(case, step=0.1, batch_size=64, sent=sent, received=received, image=3000)

    assert expected("sync", 2, links.UNSHAPED) == pytest.approx(2 * 64 / 0.1)
    assert expected("sync", 2, "10mbit") == pytest.approx(2 * 64 / (0.1 + 0.8))
    assert expected("async", 1, "100mbit") == pytest.approx(64 / (0.1 + 0.16))
    # Three asynchronous workers can't have more gradients on the server's link than fit.
    assert expected("async", 3, "10mbit", received=64 * 3000 + 1e6) == pytest.approx(64 / 0.8)


def test_the_table_of_links_has_measured_and_predicted_ratios():
    alone = links.Measured(links.Case(links.SEPARATE, 1), (100.0, 90.0, 110.0))
    beside = links.Measured(links.Case(links.SEPARATE, 2), (125.0, 124.0, 126.0))
    slow = links.Measured(links.Case("sync", 2, "10mbit"), (50.0, 49.0, 51.0), sent=1e6, received=1e6)
    figures = links.figures([alone, beside, slow, alone], batch_size=50, image=3000)
    table = links.markdown(figures).splitlines()
    assert table[0] == "| | link | 2 workers |"
    assert table[2] == f"| {links.SEPARATE} | unshaped | 1.25 |"
    ratio = 2 * 50 / (2 * 50 / 125 + 0.8) / 100  # two steps of 0.8 s beside each other, and 0.8 s of bytes
    assert table[3] == f"| sync | 10mbit | 0.50 ({ratio:.2f}) |"
    assert table[5] == "Measured speed is off by 20% of the predicted one (median), 20% at most."


def test_seconds_of_training_leave_validations_out(tmp_path):
    rows = [
        {"split": "train", "step": 1, "seconds_per_step": 3.0},
        {"split": "train", "step": 2, "seconds_per_step": 1.0},
        {"split": "validation", "step": 2, "accuracy": 0.5, "seconds": 60.0},
        {"split": "train", "step": 3, "seconds_per_step": 1.0, "wall_time": 1795500000.0},
        {"split": "validation", "step": 3, "accuracy": 0.7, "seconds": 60.0},
        {"split": "test", "step": 3, "accuracy": 0.6, "tta_accuracy": 0.65},
    ]
    run = RunDirectory(tmp_path)
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained = trainings.read_trained(run)
    assert (trained.seconds, trained.date) == (5.0, date(2026, 11, 24))
    assert trained.curve == [(4.0, 0.5), (5.0, 0.7)]
    plain, augmented, minutes = accuracy.figures("fast, an hour", {"fast, an hour": [trained]})
    assert (plain.repeats, plain.met) == ((60.0,), False)
    assert augmented.repeats == (65.0,)
    assert (minutes.repeats, minutes.met) == ((5 / 60,), True)


def test_a_recipe_is_compared_with_its_peer_seed_by_seed():
    today = date(2026, 11, 25)
    ours = [trainings.Trained({"tta_accuracy": 0.91, "accuracy": 0.9}, 600.0, [], today) for _ in range(2)]
    theirs = [
        trainings.Trained({"tta_accuracy": 0.9, "accuracy": 0.89}, seconds, [], today)
        for seconds in (800.0, 1200.0)
    ]
    found = {"fast": ours, accuracy.peer_name("fast"): theirs}
    rows = {row.name: row for row in accuracy.figures("fast", found)}
    minutes = rows["fast: minutes over those of airbench94_muon in PyTorch"]
    assert (minutes.repeats, minutes.met) == ((0.75, 0.5), True)
    points = rows["fast: points over airbench94_muon in PyTorch, with six views"]
    assert points.repeats == pytest.approx((1.0, 1.0))
    assert points.met
    assert rows["airbench94_muon in PyTorch: training"].repeats == pytest.approx((800 / 60, 20.0))


def test_recipes_measured_under_the_same_conditions_keep_their_figures(tmp_path, monkeypatch, shapes, capsys):
    trained = trainings.Trained({"accuracy": 0.8}, 60.0, [(30.0, 0.5), (60.0, 0.8)], date(2026, 11, 24))
    better = dataclasses.replace(trained, test={"accuracy": 0.9}, date=date(2026, 11, 25))
    monkeypatch.setattr(accuracy, "all_images", lambda options: shapes)

    def details_after(run, *flags):
        monkeypatch.setattr(accuracy, "measure", lambda options, manifest, name: {name: [run]})
        accuracy.main([*flags, "--output", str(tmp_path)])
        return json.loads((tmp_path / "accuracy.json").read_text())["configuration"]["details"]

    details_after(trained, "--recipes", "fast", "fast, an hour")
    details = details_after(better, "--recipes", "fast")
    assert {name: found["date"] for name, found in details.items()} == {
        "fast": "2026-11-25",
        "fast, an hour": "2026-11-24",
    }
    assert details["fast"]["curves"] == [[[30.0, 0.5], [60.0, 0.8]]]
    rows = {row.name: row.median for row in read_figures(tmp_path / "accuracy.json")}
    assert (rows["fast: test accuracy"], rows["fast, an hour: test accuracy"]) == (90.0, 80.0)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
    assert "replaced" not in capsys.readouterr().out
    assert set(details_after(better, "--recipes", "resnet20", "--steps", "5")) == {"resnet20"}
    assert "will be replaced: steps was None and is 5" in capsys.readouterr().out


def test_the_seeds_of_a_recipe_may_be_spread_over_days(tmp_path, monkeypatch, shapes, capsys):
    first = trainings.Trained(
        {"accuracy": 0.8, "tta_accuracy": 0.82}, 60.0, [(30.0, 0.5), (60.0, 0.8)], date(2026, 11, 24)
    )
    second = dataclasses.replace(first, test={"accuracy": 0.9, "tta_accuracy": 0.91}, date=date(2026, 11, 25))
    monkeypatch.setattr(accuracy, "all_images", lambda options: shapes)

    def measured(run, *flags):
        monkeypatch.setattr(
            accuracy, "train", lambda options, manifest, name, seed: seeds.append(seed) or run
        )
        accuracy.main(["--repeats", "1", "--output", str(tmp_path), *flags])
        return {row.name: row.repeats for row in read_figures(tmp_path / "accuracy.json")}

    hour, seeds = ("--recipes", "fast, an hour"), []
    measured(first, *hour)
    with pytest.raises(SystemExit, match="the earlier result of 'fast, an hour' has 1 seeds"):
        measured(second, *hour, "--first-seed", "2")
    rows = measured(second, *hour, "--first-seed", "1")
    assert rows["fast, an hour: test accuracy"] == pytest.approx((80.0, 90.0))
    assert rows["fast, an hour: test accuracy with test-time augmentation"] == pytest.approx((82.0, 91.0))
    assert rows["fast, an hour: training"] == (1.0, 1.0)
    details = json.loads((tmp_path / "accuracy.json").read_text())["configuration"]["details"]
    assert details["fast, an hour"]["curves"] == [[[30.0, 0.5], [60.0, 0.8]]] * 2
    assert (details["fast, an hour"]["date"], seeds) == ("2026-11-25", [0, 1])
    changed = accuracy.Recipe("fast_residual", {"train_steps": 5})
    monkeypatch.setitem(accuracy.RECIPES, "fast, an hour", changed)
    with pytest.raises(SystemExit, match="the earlier seeds of 'fast, an hour' had another recipe"):
        measured(second, *hour, "--first-seed", "2")
    measured(second, "--recipes", "resnet20, muon")
    assert "leave the result" not in capsys.readouterr().out
    measured(second, "--recipes", "resnet20, muon")
    assert (
        "'resnet20, muon' is measured again: its 1 earlier seeds leave the result" in capsys.readouterr().out
    )
    with pytest.raises(SystemExit, match="'fast' and its peer are trained in turn"):
        measured(second, "--recipes", "fast", "--first-seed", "1")


def test_every_variant_of_the_ablation_and_every_recipe_can_be_run():
    for changes in ablation.VARIANTS.values():
        assert Config.from_flat({**preset_values("fast"), **changes})
    for recipe in accuracy.RECIPES.values():
        assert Config.from_flat(merged_with_preset(recipe.preset, recipe.changes))


def test_a_row_is_late_until_the_charts_show_its_step_or_a_later_one():
    written = {1: 9.0, 2: 10.0, 3: 10.5, 4: 11.0, 5: 12.0}
    shown = [(1, 9.5), (3, 11.0), (5, 12.5)]
    assert dashboard_curves.delays(written, shown, 10.0, 12.0) == [1.0, 0.5, 1.5]
