"""Metrics beyond the standard charts: those that a callback adds, and labkit's own."""

import math

import numpy as np
import pytest

from app.charts.metric_charts import KNOWN, STANDARD
from app.charts.store import MAX_METRICS, CurveStore
from app.views.live import MAX_ADDED
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import DrawnChart, charts
from tests.app.conftest import evaluation_row, train_row
from tests.app.test_pages import checked, open_page, words


def append(run, *rows) -> None:
    writer = MetricsWriter(run.metrics_path)
    writer.append(list(rows))
    writer.close()


def more(at) -> list[DrawnChart]:
    return charts(at)[len(STANDARD) :]


def titles(at) -> list[str]:
    return [chart.title for chart in more(at)]


# ---- columns -------------------------------------------------------------------------------------------


def test_a_name_that_some_rows_have_is_a_curve_of_these_rows(tmp_path):
    path = tmp_path / "m"
    writer, store = MetricsWriter(path), CurveStore(path)
    writer.append([train_row(step) for step in range(1, 100)])
    early = store.poll()
    assert "a/b-c.d_1" not in early.metrics()
    writer.append(
        [train_row(step, **({"a/b-c.d_1": step / 2} if step % 3 else {})) for step in range(100, 160)]
    )
    writer.append([evaluation_row(160, **{"a/b-c.d_1": 7})])
    late = store.poll()
    curve = late.curve("train", "a/b-c.d_1")
    assert curve.step.tolist() == [step for step in range(100, 160) if step % 3]
    assert curve.y.tolist() == [step / 2 for step in range(100, 160) if step % 3]
    assert late.curve("validation", "a/b-c.d_1").y.tolist() == [7]
    assert len(late.curve("train", "loss")) == 159
    assert len(early.curve("train", "a/b-c.d_1")) == 0, "an earlier snapshot doesn't change"


def test_only_numbers_become_curves_and_those_that_are_not_finite_are_kept(tmp_path):
    odd = {"text": "1.5", "flag": True, "none": None, "list": [1], "huge": 10**400, "split2": {}}
    MetricsWriter(tmp_path / "m").append(
        [train_row(1, noise=math.nan, **odd), train_row(2, noise=math.inf, **odd), train_row(3, noise="x")]
    )
    snapshot = CurveStore(tmp_path / "m").poll()
    assert not set(odd) & set(snapshot.metrics())
    noise = snapshot.curve("train", "noise")
    assert noise.step.tolist() == [1, 2]
    np.testing.assert_array_equal(noise.y, [math.nan, math.inf])


def test_curves_are_dropped_after_a_resume_point(tmp_path):
    writer, store = MetricsWriter(tmp_path / "m"), CurveStore(tmp_path / "m")
    writer.append([train_row(step, **({"late": 1.0} if step > 50 else {})) for step in range(1, 100)])
    assert "late" in store.poll().metrics()
    writer.mark_resume_point(50)
    writer.append([train_row(step, other=2.0) for step in range(51, 60)])
    snapshot = store.poll()
    assert "late" not in snapshot.metrics()
    assert snapshot.curve("train", "other").step.tolist() == list(range(51, 60))


def test_a_new_name_at_every_step_does_not_fill_the_memory(make_run):
    run = make_run()
    append(run, *(train_row(step, **{f"name{step}": 1.0}) for step in range(121, 400)))
    snapshot = CurveStore(run.metrics_path).poll()
    assert len(snapshot.metrics()) == MAX_METRICS
    assert snapshot.curve("train", "loss").step[-1] == 399
    assert f"The first {MAX_METRICS} of a split" in words(open_page("live", run))


# ---- the live page -------------------------------------------------------------------------------------


def test_a_metric_that_a_callback_adds_is_drawn_by_itself_with_all_its_splits(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    assert more(at) == []
    append(run, train_row(121, noise=0.3), train_row(122, noise=0.2), evaluation_row(122, noise=0.4))
    checked(at.run())
    assert titles(at) == ["noise"]
    assert set(more(at)[0].lines) >= {"train", "validation"}
    at.multiselect[0].set_value([])
    checked(at.run())
    append(run, train_row(123, noise=0.1, other=1))
    assert titles(checked(at.run())) == ["other"], "what was put away stays away; what is new is drawn"


def test_what_is_drawn_stays_while_more_names_appear(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    for number in range(4):
        append(run, train_row(121 + number, **{f"name{number}": 1.0, "noise": 0.5}))
        shown = titles(checked(at.run()))
        assert sorted(shown) == ["name" + str(n) for n in range(number + 1)] + ["noise"]


def test_every_metric_of_labkits_own_rows_can_be_drawn(make_run):
    run = make_run()
    own = dict.fromkeys(KNOWN, 0.5)
    append(run, train_row(121, **own))
    at = open_page("live", run)
    assert more(at) == []
    at.multiselect[0].set_value([name for name in KNOWN if name not in STANDARD])
    assert titles(checked(at.run())) == [look.title for name, look in KNOWN.items() if name not in STANDARD]


def test_of_very_many_added_metrics_the_first_are_drawn_and_the_others_offered(make_run):
    run = make_run()
    append(run, train_row(121, **{f"metric{number:02}": number for number in range(MAX_ADDED + 8)}))
    at = open_page("live", run)
    assert titles(at) == [f"metric{number:02}" for number in range(MAX_ADDED)]
    assert f"metric{MAX_ADDED + 7}" in at.multiselect[0].options


def test_the_controls_apply_to_added_metrics_and_names_are_no_html(make_run):
    run = make_run()
    append(run, *(train_row(step, **{"<b>x</b>": step - 150.0}) for step in range(121, 200)))
    at = open_page("live", run)
    assert titles(at) == ["<b>x</b>"], "the page writes it as text, see test_browser.py"
    at.slider(key="smoothing").set_value(0.0)
    at.toggle(key="log").set_value(True)
    (chart,) = more(checked(at.run()))
    assert chart.logarithmic
    assert {kind: count for kind, (count, _) in chart.lines["train"].marks.items()} == {"≤ 0": 30}


@pytest.mark.parametrize("chosen", ["noise (train)", "noise (validation)", "Input wait (train)"])
def test_any_metric_can_be_compared(make_run, chosen):
    for name in ("first", "second"):
        append(make_run(name), train_row(121, noise=0.3), evaluation_row(121, noise=0.4))
    at = open_page("compare", "first")
    at.multiselect(key="more").set_value([chosen])
    drawn = {chart.title: chart for chart in charts(checked(at.run()))}[chosen]
    assert list(drawn.lines) == ["first", "second"]
