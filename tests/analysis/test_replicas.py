"""Comparing layouts: names, commands, errors, table and plot. tests/properties trains for real."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit import plots
from labkit.analysis import replicas
from labkit.analysis.replicas import LAYOUTS, Layout, ReplicaComparison, compare_replicas
from labkit.config import Config
from labkit.errors import InputError

VALUES = {"dataset": "shapes", "num_layers": 8, "sync_batch_norm": True}


def comparison(**differences: float) -> ReplicaComparison:
    losses = np.array([2.5, 2.25, 2.0])
    others = {name.replace("_", " "): losses + np.array([0, value, 0]) for name, value in differences.items()}
    return ReplicaComparison(Config.from_flat(VALUES), {"1 replica": losses, **others})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1 replica", Layout()),
        ("2 logical devices", Layout(1, 2)),
        ("1 logical device", Layout(1, 1)),
        ("2 processes", Layout(2, 1)),
        ("1 process", Layout(1, 1)),
        ("2 processes × 4 logical devices", Layout(2, 4)),
        ("2 processes x 4 logical devices", Layout(2, 4)),
        ("8 GPUs", Layout(1, 8, "GPU")),
        ("2 processes × 1 GPU", Layout(2, 1, "GPU")),
    ],
)
def test_layout_names_are_parsed(name, expected):
    assert Layout.parse(name) == expected


@pytest.mark.parametrize(
    "name", ["", "two processes", "0 replicas", "2", "2 TPUs", "2 processes ×", "-1 GPUs"]
)
def test_unknown_layout_names_are_refused(name):
    with pytest.raises(InputError, match="allowed: '1 replica'"):
        Layout.parse(name)


def values_of(command: list[str]) -> dict[str, str]:
    flags = command[command.index("train") + 1 :]
    return dict(zip(flags[::2], flags[1::2], strict=True))


def test_the_command_of_each_layout():
    one = Layout().command({"learning_rate": 0.1, "gradient_clip_norm": None}, Path("/run"))
    assert one[:4] == [sys.executable, "-m", "labkit", "train"]
    assert values_of(one) == {
        "--learning-rate": "0.1",
        "--gradient-clip-norm": "none",
        "--job-dir": "/run",
        "--num-gpus": "0",
        "--simulate-missing-gpus": "False",
    }
    both = Layout(2, 4).command({}, Path("/run"))
    assert both[3:8] == ["cluster", "local", "--workers", "2", "--"]
    assert values_of(both)["--num-gpus"] == "4"
    assert values_of(both)["--simulate-missing-gpus"] == values_of(both)["--sync"] == "True"
    # Layouts of GPUs are never simulated: a machine without GPUs refuses them.
    assert values_of(Layout(1, 2, "GPU").command({}, Path("/run")))["--simulate-missing-gpus"] == "False"


def test_layouts_of_cpu_devices_see_no_gpu_and_no_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert Layout(1, 2).environment()["CUDA_VISIBLE_DEVICES"] == "-1"
    assert Layout(1, 2, "GPU").environment()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "TF_CONFIG" not in Layout().environment()


@pytest.mark.parametrize(
    ("values", "layouts", "message"),
    [
        ({"train_batch_size": 126}, LAYOUTS, "--train-batch-size is 126 with 4 replicas"),
        ({"eval_batch_size": 101}, ("1 replica", "2 processes"), "--eval-batch-size is 101 with 2"),
        ({"num_gpus": 2}, LAYOUTS, "num_gpus is set by compare_replicas"),
        ({"learning_rat": 2}, LAYOUTS, "did you mean 'learning_rate'"),
        ({}, (), "layouts is"),
        ({}, ("2 processes", "2 processes"), "each named once"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path, values, layouts, message):
    with pytest.raises(InputError, match=message):
        compare_replicas(VALUES | values, layouts, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def pretend(monkeypatch, program: str) -> None:
    """Make every layout run a program instead of a training; argv[1] is the run directory."""

    def command(self, values, job_dir):
        return [sys.executable, "-c", program, str(job_dir), str(self.num_replicas)]

    monkeypatch.setattr(Layout, "command", command)


WRITES_METRICS = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[1]); run.mkdir()
with open(run / "metrics.jsonl", "w") as file:
    for step in (1, 2, 3):
        loss = 1 / step + 1e-7 * int(sys.argv[2])
        print(json.dumps({"split": "train", "step": step, "loss": loss}), file=file)
"""


def test_the_losses_are_read_from_the_runs(monkeypatch, tmp_path):
    pretend(monkeypatch, WRITES_METRICS)
    said = []
    found = compare_replicas(
        VALUES, ("1 replica", "2 processes"), steps=3, folder=tmp_path, announce=said.append
    )
    np.testing.assert_allclose(found.losses["1 replica"], [1 + 1e-7, 1 / 2 + 1e-7, 1 / 3 + 1e-7], rtol=1e-15)
    assert found.largest == pytest.approx(1e-7, rel=1e-6)
    assert found.config.run.train_steps == 3
    assert [line.split(": loss")[0] for line in said] == ["1 of 2: 1 replica", "2 of 2: 2 processes"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["1-replica", "2-processes"]


def test_a_run_with_missing_steps_is_an_error(monkeypatch):
    pretend(monkeypatch, WRITES_METRICS)
    with pytest.raises(RuntimeError, match="3 training rows; expected: one a step from 1 to 4"):
        compare_replicas(VALUES, ("1 replica",), steps=4)


def test_the_error_of_a_failed_training_quotes_its_output(monkeypatch):
    pretend(monkeypatch, "import sys; print('the reason'); sys.exit(1)")
    with pytest.raises(RuntimeError, match="exit code 1.*\nthe reason"):
        compare_replicas(VALUES, ("1 replica",))
    pretend(monkeypatch, "import sys; sys.exit(print('labkit: error: no such device') or 2)")
    with pytest.raises(InputError, match="^no such device$"):
        compare_replicas(VALUES, ("1 replica",))


def test_a_training_that_takes_too_long_is_ended(monkeypatch):
    pretend(monkeypatch, "import time; time.sleep(600)")
    ended = []
    stop = replicas._stop
    monkeypatch.setattr(replicas, "_stop", lambda process: (stop(process), ended.append(process)))
    with pytest.raises(RuntimeError, match="took too long"):
        compare_replicas(VALUES, ("1 replica",), time_limit_seconds=0.2)
    assert [process.returncode for process in ended] == [-signal.SIGTERM]


def test_the_table_of_known_losses():
    found = comparison(**{"2_processes": 3e-6, "4_logical_devices": 0})
    assert found.reference == "1 replica"
    assert found.largest == pytest.approx(3e-6)
    title, header, *rows = str(found).splitlines()
    assert title == "resnet8, batch 128, learning rate 0.1, float32, batch statistics synchronized"
    assert header.split()[-4:] == ["1", "largest", "at", "step"]
    assert rows[0].split() == ["1", "replica", "1", "2.500000", "2.000000"]
    assert rows[1].split() == ["2", "processes", "2", "2.500000", "2.000000", "0.0e+00", "3.0e-06", "2"]
    assert repr(found) == str(found)
    assert found._repr_html_().count("<tr>") == 4


def test_a_single_layout_has_no_differences():
    assert comparison().largest == 0


def test_the_figure_shows_losses_and_differences():
    found = comparison(**{"2_processes": 3e-6, "4_logical_devices": 0})
    figure = plots.replica_curves(found, comparison(**{"2_processes": 1e-2}))
    losses, _, apart, apart_of_second = figure.axes
    drawn = {line.get_label(): line.get_xydata() for line in losses.get_lines()}
    assert list(drawn) == ["1 replica", "2 processes", "4 logical devices"]
    np.testing.assert_array_equal(drawn["1 replica"], [[1, 2.5], [2, 2.25], [3, 2.0]])
    assert apart.get_yscale() == "log"
    differences = {line.get_label(): line.get_ydata() for line in apart.get_lines()}
    assert differences["2 processes"][1] == pytest.approx(3e-6)
    # A logarithmic scale has no zero, so a difference of 0 is drawn at the lower edge.
    np.testing.assert_allclose(differences["4 logical devices"], apart.get_ylim()[0])
    assert apart_of_second.get_ylim() == apart.get_ylim()
    assert plots.png(figure)
    assert plots.png(plots.replica_curves(comparison(**{"2_processes": 0})))
    with pytest.raises(ValueError, match="at least one"):
        plots.replica_curves()


def test_the_module_needs_no_tensorflow():
    program = "import sys, labkit.analysis.replicas; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
