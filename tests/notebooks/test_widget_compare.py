"""``CompareRuns``: figure and table first, which stay in a saved notebook; then controls."""

import base64

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.errors import InputError
from labkit.figures import compare_runs
from labkit.figures.compare_runs import CompareRuns
from labkit.run_directory import write_json_atomic
from tests.commands.made_runs import evaluation, make_run


@pytest.fixture
def runs(tmp_path):
    """Two learning rates, two seeds each; the last run has HTML in its name."""
    made = []
    for name, rate, seed in (("a", 0.1, 0), ("b", 0.1, 1), ("c", 0.2, 0), ("<b>d", 0.2, 1)):
        rows = [evaluation("validation", 20, 0.5 + rate), evaluation("test", 20, 0.5 + rate + seed / 100)]
        made.append(make_run(tmp_path, name, rows=rows, learning_rate=rate, seed=seed))
    return made


class Shown:
    """What stands in for the displayed picture or table."""

    def __init__(self) -> None:
        self.latest = None

    def update(self, value: object) -> None:
        self.latest = value


def test_the_answer_is_below_the_table(runs):
    html = CompareRuns(runs).html()
    assert "60.50 ± 0.71 % (2)" in html
    assert "<b>B is better: B&#x27;s test accuracy is 10.00 points higher" in html
    assert "Not compared on single test images: a has no predictions" in html
    html = CompareRuns(runs, seeds_together=False).html()
    assert "&lt;b&gt;d" in html and "<b>d" not in html
    assert "Give runs of a second configuration" in CompareRuns(runs[0].path).html()


def test_runs_without_any_result_are_drawn(tmp_path):
    shown = CompareRuns([make_run(tmp_path, name, rows=[], seed=0) for name in "ab"], seeds_together=False)
    for run in shown.runs.values():
        write_json_atomic(run.status_path, {"state": "running", "step": 0, "total_steps": 5})
    assert "have no test accuracy" in shown.html()
    assert shown.figure().axes[1].get_title(loc="left") == "Test accuracy"


def test_the_controls_replace_figure_and_table_in_place(runs):
    shown, figure, table = CompareRuns(runs), Shown(), Shown()
    panel = compare_runs._Panel(shown, figure, table, shown.groups())
    assert figure.latest is None
    panel.by.value = "best_validation"
    assert "Best validation" in figure.latest.axes[1].get_title(loc="left")
    panel.single.value = True
    assert [name for name, _ in panel.first.options] == ["a", "b", "c", "<b>d"]
    panel.second.value = 3
    assert "B: &lt;b&gt;d." in table.latest.data


def test_bad_input_is_refused_with_what_is_allowed(runs):
    for given, options, message in (
        ([], {}, "0 runs were given; allowed: 1 to 50"),
        ([3], {}, "a run is 3; allowed"),
        ([runs[0].path / "no"], {}, "no run at|is not a run directory|no run"),
        (runs, {"by": "luck"}, "by is 'luck'; allowed: test_accuracy"),
    ):
        with pytest.raises(InputError, match=message):
            CompareRuns(given, **options)
    runs[1].metrics_path.write_bytes(b"\xff\x00{")
    runs[2].metrics_path.unlink()
    shown = CompareRuns(runs)
    assert shown.figure() is not None and "learning_rate" in shown.html()
    runs[2].config_path.unlink()
    write_json_atomic(runs[3].environment_path, [])
    assert shown.html()


@pytest.mark.slow
def test_papermill_keeps_figure_and_table(runs, tmp_path):
    code = f"import labkit\nlabkit.CompareRuns({[str(run.path) for run in runs]!r})"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[new_code_cell(code)], metadata=kernel), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False
    )
    picture, table = (output["data"] for output in done.cells[0].outputs)
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert "B is better" in table["text/html"]
