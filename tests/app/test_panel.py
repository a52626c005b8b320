"""The panel beside the charts: other runs, formulas, order, scale, smoothing; notes on steps."""

import math
import os
import time
from dataclasses import replace

import pytest

from app import feed
from app.charts import metric_charts
from app.charts.board import COLORS, PALETTE
from app.charts.layout import Layout, keep, kept_path, read_kept
from app.charts.metric_charts import Options, board_of, metric_chart, standard
from app.charts.smoothing import smoothed
from app.charts.store import MOST_BYTES, Memo
from app.live_panel import MAX_BESIDE
from app.state import curves
from labkit.errors import InputError
from labkit.run_directory.notes import change_notes, read_notes
from tests.app.boards import boards, charts, decoded
from tests.app.pages import button, checked, open_page, press, words
from tests.app.rows import append, append_machine, evaluation_row, machine_row, train_row

USUAL = ["Loss", "Accuracy", "Learning rate", "Examples per second"]
GAP = "train/loss - validation/loss"


def titles(at) -> list[str]:
    return [chart.title for chart in charts(at)]


# ---- other runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["step", "epoch", "training", "clock"])
def test_the_curves_of_other_runs_are_laid_over_by_the_same_axis(make_run, axis):
    run, other = make_run("first"), make_run("second", steps=240)
    make_run("third")
    append(other.metrics_path, evaluation_row(240, loss=0.5, perplexity=3.0))
    alone = charts(open_page("live", other, x=axis))[0].lines
    at = open_page("live", run, x=axis, beside=["second", "third"])
    loss, accuracy, rate, _ = charts(at)
    assert {"train", "validation", "second, train", "second, validation", "third, train"} <= set(loss.lines)
    assert "second, train, raw" not in loss.lines
    for name in ("train", "validation"):
        assert loss.lines[f"second, {name}"].x.tolist() == alone[name].x.tolist()
        assert loss.lines[f"second, {name}"].y.tolist() == alone[name].y.tolist()
    own = {loss.lines[name].color for name in ("train", "validation")}
    assert own == {COLORS["train"], COLORS["validation"]}
    drawn = [loss.lines[f"{name}, train"].color for name in ("second", "third")]
    assert drawn == list(PALETTE[3:5]), "one colour for a run, which no split has"
    dashes = {name: loss.lines[f"second, {name}"].dash for name in ("train", "validation")}
    assert dashes == {name: loss.lines[name].dash for name in dashes} and len(set(dashes.values())) == 2
    assert "second, train" in rate.lines and "second, validation" in accuracy.lines


def test_other_runs_are_chosen_from_the_list(make_run):
    run = make_run("first")
    for number in range(MAX_BESIDE + 2):
        make_run(f"other-{number}")
    at = open_page("live", run)
    box = at.multiselect(key="beside")
    assert "first" not in box.options and "other-3" in box.options
    box.set_value(["other-3", "other-1"])
    assert {"other-3, train", "other-1, train"} <= set(charts(checked(at.run()))[0].lines)
    at = open_page("live", run, beside=["first", "nobody", "other-1"])
    assert "No run 'nobody' is listed." in words(at) and "'first'" not in words(at)
    assert "other-1, train" in charts(at)[0].lines and "first, train" not in charts(at)[0].lines
    at = open_page("live", run, beside=[f"other-{number}" for number in range(MAX_BESIDE + 2)])
    assert sum(name.endswith(", train") for name in charts(at)[0].lines) == MAX_BESIDE


def test_a_run_that_can_not_be_read_is_told_and_the_others_are_drawn(make_run):
    run, broken = make_run("first"), make_run("broken")
    broken.metrics_path.unlink()
    broken.metrics_path.mkdir()
    at = open_page("live", run, beside="broken")
    assert "can't be read" in words(at)
    assert list(charts(at)[0].lines) == ["train, raw", "train", "validation"]


def test_new_rows_of_another_run_are_fetched_though_this_one_has_ended(make_run, monkeypatch):
    offered = []
    monkeypatch.setattr(feed, "offer", lambda *args: offered.append(args[1:]) or "labkit/feed/x")
    run, other = make_run("first"), make_run("second", state="running")
    open_page("live", run)
    assert not offered
    open_page("live", run, beside="second")
    make, look = offered[-1]
    os.utime(other.metrics_path, (0, 0))  # the clock of files is coarse
    before = look()
    append(other.metrics_path, train_row(900, loss=0.25))
    assert look() != before
    update = make()
    assert not update.is_stale
    line = decoded(next(iter(update.boards.values()))).charts[0].lines["second, train"]
    assert line.x[-1] == 900


# ---- formulas ------------------------------------------------------------------------------------------


def test_formulas_have_charts(make_run):
    run, other = make_run("first"), make_run("second")
    at = open_page("live", run)
    assert titles(at) == USUAL
    at.text_area(key="formulas").set_value(f" {GAP}\n\nvalidation/accuracy\nlog10(loss)\n{GAP}")
    assert titles(checked(at.run())) == [*USUAL, GAP, "validation/accuracy", "log10(loss)"]
    gap, accuracy, logarithm = charts(at)[4:]
    loss = curves(run).curve("train", "loss")
    shown = logarithm.lines["formula, raw"]
    assert shown.y.tolist() == pytest.approx([math.log10(value) for value in loss.y])
    assert accuracy.unit == "percent" and gap.unit == ""
    assert list(accuracy.lines) == ["formula"], "evaluations aren't smoothed"
    at = open_page("live", run, formulas=f"{GAP}\nother / loss", beside="second")
    assert titles(at)[4:] == [GAP, "other / loss"]
    assert {"formula", "second, formula"} <= set(charts(at)[4].lines)
    assert "'other', which the run doesn't have so far" in words(at)
    append(other.metrics_path, train_row(121, other=1.0))
    assert list(charts(checked(at.run()))[5].lines) == ["second, formula"], "only the other run has it"
    append(run.metrics_path, train_row(121, other=1.0))
    at = open_page("live", run, formulas="other / loss")
    assert "doesn't have" not in words(at) and charts(at)[-1].lines["formula"].of == 1


def test_too_many_formulas_and_hostile_ones_leave_the_page_whole(make_run):
    run = make_run()
    at = open_page("live", run, formulas="\n".join(f"loss + {number}" for number in range(40)))
    assert len(titles(at)) == len(USUAL) + 12
    assert "Of 40 formulas the first 12 are drawn." in words(at)
    hostile = "__import__('os')\n<b>x</b>\n9**9**9\n" + "(" * 10_000
    text = words(open_page("live", run, formulas=hostile))
    assert text.count("The formula") == 4


# ---- arrangement ---------------------------------------------------------------------------------------


def test_charts_are_hidden_pinned_and_found(make_run):
    run = make_run()
    append_machine(run, *(machine_row(second) for second in range(20)))
    at = open_page("live", run)
    machine = ["CPU use", "Memory", "Disk, per second"]
    assert titles(at) == [*USUAL, *machine]
    at.multiselect(key="first").set_value(["Learning rate", "Accuracy", "Disk, per second"])
    at.multiselect(key="hidden").set_value(["Loss", "CPU use"])
    arranged = ["Learning rate", "Accuracy", "Examples per second", "Disk, per second", "Memory"]
    assert titles(checked(at.run())) == arranged
    assert button(at, "Charts (5 of 7)") is not None
    link = {"first": ["Learning rate", "Accuracy", "Disk, per second"], "hidden": ["Loss", "CPU use"]}
    assert titles(open_page("live", run, **link)) == arranged
    assert titles(open_page("live", run, first=["nothing", "loss", "Loss", "Loss"])) == [*USUAL, *machine]
    at = open_page("live", run, find="LOSS|acc")
    assert titles(at) == ["Loss", "Accuracy"]
    assert titles(open_page("live", run, find="^learning_rate$|^Memory")) == ["Learning rate", "Memory"]
    assert titles(open_page("live", run, find="nothing like it")) == []
    at.text_input(key="find").set_value("loss(")
    assert titles(checked(at.run())) == [*USUAL, *machine]
    assert "The regular expression 'loss(' can't be read: missing ): loss(; all charts are shown." in words(
        at
    )


def test_no_regular_expression_stops_the_server():
    started = time.monotonic()
    assert Layout(find="(a*)*(a*)*(a|aa)+$").arranged({"a" * 5_000 + "b": "x"}) == []
    with pytest.raises(InputError):
        Layout(find="((a{500}){500}){500}").arranged({"a": "A"})
    assert time.monotonic() - started < 2


def test_what_this_run_lacks_stays_chosen(make_run):
    run, other = make_run("first"), make_run("second")
    append(other.metrics_path, train_row(121, noise=1.0))
    at = open_page("live", run, hidden=["noise", "Accuracy"])
    at.multiselect(key="hidden").set_value(["noise", "Accuracy", "Loss"])
    checked(at.run())
    at.session_state["run"] = str(other.path)
    assert titles(checked(at.run())) == ["Learning rate", "Examples per second"]


def test_charts_of_one_title_are_all_drawn():
    titles = {"loss": "Loss", "Loss": "Loss", "x": "X"}
    assert Layout(first=("X", "Loss")).arranged(titles) == ["x", "loss", "Loss"]


def test_a_layout_is_kept_for_all_runs_until_it_is_reset(make_run):
    run, other = make_run("first"), make_run("second")
    at = open_page(
        "live", run, formulas=GAP, hidden="Accuracy", first="Learning rate", size="large", find="loss|rate"
    )
    press(at, "Keep for all runs")
    assert titles(at) == ["Learning rate", "Loss", GAP]
    at = open_page("live", other)
    assert titles(at) == ["Learning rate", "Loss", "Examples per second", GAP]
    at.multiselect(key="hidden").set_value([])
    assert "Accuracy" in titles(checked(at.run()))
    assert "Accuracy" in titles(open_page("live", other, hidden=""))
    press(at, "Reset")
    assert titles(at) == USUAL and not kept_path().exists()
    assert titles(open_page("live", run)) == USUAL
    for kind, key, value in (("", "smoothing", 0.9), ("Gaussian", "width", 5)):
        at = open_page(
            "live", run, **({"smooth": kind} if kind else {}), **{key: str(value)}, log="on", steps="Last 100"
        )
        before = boards(at)[0]
        assert before.window and before.charts[0].logarithmic
        press(at, "Reset")
        after, usual = boards(at)[0], boards(open_page("live", run))[0]
        assert after.window is None and not after.charts[0].logarithmic
        assert after.charts[0].lines["train"].y.tolist() == usual.charts[0].lines["train"].y.tolist()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"version": 2}', "has version 2; allowed: 1"),
        ('{"version": 1, "hidden": ["Loss", 3]}', "can't be read"),
        ('{"version": 1, "size": "huge", "hidden": ["Loss"]}', "can't be read"),
        ('{"version": 1, "hidden": ["Loss"', "can't be read"),
        ("[]", "can't be read"),
        ("\xff", "can't be read"),
    ],
)
def test_a_damaged_layout_is_one_sentence_and_the_usual_charts(make_run, content, said):
    run = make_run()
    kept_path().write_bytes(content.encode("latin-1"))
    at = open_page("live", run)
    assert titles(at) == USUAL
    [sentence] = [one.value for one in at.warning if str(kept_path().name) in one.value.replace("\\", "")]
    assert said in sentence.replace("\\", "") and "\n" not in sentence
    press(at, "Reset")
    assert not kept_path().exists() and not at.warning


def test_a_read_only_dashboard_keeps_nothing_and_resets_only_the_page(make_run, monkeypatch):
    run = make_run()
    keep(Layout(hidden=("Loss",)))
    change_notes(run, at_step=(20, "rate halved"))
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    at = open_page("live", run, hidden="Accuracy", batch="20")
    assert button(at, "Keep for all runs") is None and "rate halved" in words(at)
    assert not [one for one in at.text_input if one.label.startswith("Note on")]
    press(at, "Reset")
    assert titles(at) == USUAL[1:] and read_kept() == Layout(hidden=("Loss",))
    assert "Session State" not in words(at), "Streamlit warns of nothing"
    for act in (lambda: keep(Layout(size="large")), lambda: keep(None)):
        with pytest.raises(InputError, match="read-only"):
            act()
    assert read_kept() == Layout(hidden=("Loss",))


# ---- scale ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "logarithmic"),
    [
        ([2.0, 1.0, 0.5], False),
        ([2.0, 0.1, 1e-4, 1e-5], True),
        ([1.0, 1e30, math.inf, math.nan], True),  # it diverges
        ([2.0, 2.5, 1.5, 2.0, 300.0], True),  # one value would flatten the others
        ([1.0, 1e30, 0.0], False),  # a logarithmic axis has no place for it
        ([1.0, 1e30, -1.0], False),
        ([math.nan, math.nan], False),
    ],
)
def test_the_loss_is_logarithmic_by_itself_where_it_spans_four_decades(make_run, losses, logarithmic):
    run = make_run(steps=1)
    run.metrics_path.write_bytes(b"")
    rows = (
        train_row(step, loss=value, learning_rate=10.0**-step) for step, value in enumerate(losses * 6, 1)
    )
    append(run.metrics_path, *rows)
    loss, accuracy, rate, _ = charts(open_page("live", run))
    assert loss.logarithmic is logarithmic and not accuracy.logarithmic and not rate.logarithmic
    for chosen, expected in (("on", True), ("off", False), ("true", True), ("On", True)):
        shown = charts(open_page("live", run, log=chosen))
        assert [chart.logarithmic for chart in shown] == [expected, False, expected, False], chosen


def test_a_diverged_run_does_not_flatten_the_curves_of_the_others_in_the_comparison(make_run):
    runs = [make_run("good"), make_run("diverged")]
    open_at = {"single": "true", "curves": "Training loss"}
    assert not charts(open_page("compare", "good", **open_at))[0].logarithmic
    append(runs[1].metrics_path, *(train_row(step, loss=2.0**step) for step in range(121, 200)))
    assert charts(open_page("compare", "good", **open_at))[0].logarithmic
    assert not charts(open_page("compare", "good", log="Off", **open_at))[0].logarithmic


# ---- smoothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Gaussian", "Mean of a window"])
def test_the_kind_and_the_width_are_in_the_address(make_run, kind):
    run = make_run()
    at = open_page("live", run, smooth=kind, width="2")
    line = charts(at)[0].lines["train"]
    loss = curves(run).curve("train", "loss").y
    assert line.y[10] == pytest.approx(loss[9:12].mean(), rel=1e-9) or kind == "Gaussian"
    assert line.y.tolist() != loss.tolist()
    at.number_input(key="width").set_value(0)
    assert list(charts(checked(at.run()))[0].lines) == ["train", "validation"], "nothing is smoothed"


def test_a_zoom_smooths_no_curve_again(make_run, monkeypatch):
    """The memory for what was computed is that of a run of a million rows, in proportion."""
    calls: list[str] = []
    monkeypatch.setattr(metric_charts, "smoothed", lambda *given: calls.append("") or smoothed(*given))
    steps = 5_000
    metrics = replace(curves(make_run(steps=steps)), memo=Memo(MOST_BYTES * steps // 1_000_000))
    options, names = Options(smoothing=0.6), (*standard(()), f"={GAP}")
    for low in range(1, 4):
        window = (float(low), 4_000.0)
        charts = [metric_chart(metrics, name, options) for name in names]
        board_of(metrics, options, "name", low, lambda charts=charts: charts, window=window)
        assert len(calls) == 4, "loss, accuracy, speed and the formula, each once"


# ---- notes on steps ------------------------------------------------------------------------------------


def test_a_note_on_a_step_is_drawn_on_the_charts_and_removed(make_run):
    run = make_run()
    at = open_page("live", run, batch="20")

    def field():
        return at.text_input(key="step-note-20")

    field().set_value("rate <b>halved</b>")
    checked(at.run())
    assert boards(at)[0].seams == {"rate <b>halved</b>": 20, "batch of step 20": 20}
    assert read_notes(run).steps == ((20, "rate <b>halved</b>"),)
    change_notes(run, at_step=(60, "from a shell"))
    change_notes(run, at_step=(900, "no such step"))
    at = open_page("live", run, x="epoch", batch="20")
    assert boards(at)[0].seams == {"rate <b>halved</b>": 0.4, "from a shell": 1.2, "batch of step 20": 0.4}
    assert field().value == "rate <b>halved</b>"
    field().set_value("  ")
    assert "rate <b>halved</b>" not in boards(checked(at.run()))[0].seams
    assert [step for step, _ in read_notes(run).steps] == [60, 900]
    run.notes_path.unlink()
    run.notes_path.mkdir()
    field().set_value("not written")
    assert "can't be written" in words(checked(at.run()))
