"""Comparing layouts: names, commands, errors, tables and plot. tests/properties trains for real."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit import figures as plots
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.experiments import trials
from labkit.experiments.replicas import (
    LAYOUTS,
    Layout,
    LayoutLosses,
    ReplicaComparison,
    compare,
    compare_replicas,
)
from labkit.experiments.trials import Trial, TrialEnd
from labkit.parts.code import record
from labkit.run_directory import RunDirectory
from labkit.startup.child import child_environment
from tests.experiments import replica_training

CONFIG = Config.from_flat({"dataset": "shapes", "num_layers": 8, "learning_rate": 2e-4})


def losses_of(sync_batch_norm: bool = True, precision: str = "float32", **apart: float) -> LayoutLosses:
    """Three steps of one replica, and of layouts that are apart by so much at the second one."""
    losses = np.array([2.5, 2.25, 2.0])
    others = {name.replace("_", " "): losses + np.array([0, value, 0]) for name, value in apart.items()}
    return LayoutLosses(sync_batch_norm, {"1 replica": losses, **others}, 1e-5, precision)


def comparison(synchronized: LayoutLosses | None, own: LayoutLosses | None = None) -> ReplicaComparison:
    return ReplicaComparison(CONFIG, Path("/runs"), synchronized, own)


# ---- layouts -------------------------------------------------------------------------------------------


NAMED = {
    "1 replica": Layout(),
    "2 logical devices": Layout(1, 2),
    "1 logical device": Layout(1, 1),
    "2 processes": Layout(2, 1),
    "2 processes × 4 logical devices": Layout(2, 4),
    "2 processes x 4 logical devices": Layout(2, 4),
    "8 GPUs": Layout(1, 8, "GPU"),
    "2 processes × 1 GPU": Layout(2, 1, "GPU"),
}


def test_layout_names_are_parsed_and_others_refused():
    assert {name: Layout.parse(name) for name in NAMED} == NAMED
    assert [Layout.parse(name).num_replicas for name in LAYOUTS] == [1, 2, 4, 2]
    for name in ("", "two processes", "0 replicas", "2", "2 TPUs", "2 processes ×", "-1 GPUs"):
        with pytest.raises(InputError, match="allowed: '1 replica'"):
            Layout.parse(name)


def test_the_command_of_each_layout():
    config = CONFIG.replace({"sync_batch_norm": True, "variable_strategy": "GPU"})
    own = ["train", "--dataset", "shapes", "--num-layers", "8", "--learning-rate", "0.0002"]
    own += ["--train-steps", "80000"]  # or the process would fit its recipe to the data

    def command(layout: Layout) -> list[str]:
        program, *rest = layout.command(layout.config(config, Path("/run")))
        assert (program, rest[0]) == (sys.executable, "-P")
        return rest[1:]

    # One replica's part of the batch is the whole batch, and it has no variables on several devices.
    one = command(Layout())
    assert one[:2] == ["-m", "labkit"]
    assert not {"--sync-batch-norm", "--variable-strategy", "--sync"} & set(one)
    assert sorted(one[2:]) == sorted([*own, "--num-gpus", "0", "--job-dir", "/run"])
    both = command(Layout(2, 4))
    assert both[2:6] == ["cluster", "local", "--workers", "2"]
    assert sorted(both[7:]) == sorted(
        [*own, "--num-gpus", "4", "--simulate-missing-gpus", "--sync", "--sync-batch-norm",
         "--variable-strategy", "GPU", "--job-dir", "/run"]
    )  # fmt: skip
    # Layouts of GPUs are never simulated.
    assert "--simulate-missing-gpus" not in command(Layout(1, 2, "GPU"))


def test_layouts_of_cpu_devices_see_no_gpu_and_no_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert child_environment(Layout(1, 2).variables)["CUDA_VISIBLE_DEVICES"] == "-1"
    assert child_environment(Layout(1, 2, "GPU").variables)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "TF_CONFIG" not in child_environment(Layout().variables)


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_batch_size": 126}, "--train-batch-size is 126 with 4 replicas"),
        (
            {"train_batch_size": 127, "ghost_batches": 2},
            "127 with 1 replica of 2 ghost batches; allowed: mul",
        ),
        ({"eval_batch_size": 101, "layouts": ["2 processes"]}, "--eval-batch-size is 101 with 2"),
        ({"xla": True}, "--xla needs one replica per process"),
        ({"num_gpus": 2}, "--num-gpus is 2; each layout decides it"),
        ({"train_steps": 5}, "--train-steps is 5; say how many with --steps"),
        ({"job_dir": "x"}, "--job-dir is 'x'; .*--output"),
        ({"learning_rat": 2}, "did you mean 'learning_rate'"),
        ({"sync_batch_norm": "yes"}, "--sync-batch-norm is 'yes'"),
        ({"preset": "smok"}, "did you mean 'smoke'"),
        ({"steps": 0}, "--steps is 0; allowed: a whole number of at least 1"),
        ({"steps": 2.5}, "--steps is 2.5"),
        ({"tolerance": 0.0}, "--tolerance is 0.0; allowed: a number above 0"),
        ({"layouts": []}, "--layouts is ''; allowed: one or more layouts"),
        ({"layouts": "2 processes"}, "layouts is '2 processes'; allowed: a list"),
        ({"layouts": ["2 processes", "2 processes"]}, "each named once"),
        ({"layouts": ["1 replica", "1 process"]}, "each named once"),
        ({"layouts": ["1 replica", "512 processes"]}, "512 processes; allowed here: at most"),
        ({"layouts": ["1 replica", "2 GPUs"]}, "names 2 GPUs, but 0 can be used here"),
        ({"output": "gs://bucket/x"}, "--output is 'gs://bucket/x'"),
        ({"output": "/dev/null/x"}, "--output /dev/null/x: /dev/null is not a directory"),
        ({"data_dir": "/nowhere"}, "/nowhere .*labkit data prepare"),
        ({"train_batch_size": 9004}, "--train-batch-size is 9004; allowed: at most 9000"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    values, message, tmp_path, monkeypatch, shapes
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(compare, "run_trial", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(InputError, match=message) as refusal:
        compare_replicas(**{"output": tmp_path / "new"} | values)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "new").exists()


# ---- what is trained -----------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch, shapes):
    """Losses without TensorFlow: apart by 1e-7, or 0.01 with own statistics, for each further replica."""
    monkeypatch.setattr(Layout, "command", replica_training.command)


def run_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_one_replica_is_trained_once_and_the_others_with_and_without(pretended, tmp_path):
    said: list[str] = []
    found = compare_replicas(
        ("1 replica", "2 processes"), steps=3, output=tmp_path, announce=said.append, num_layers=14
    )
    assert found.synchronized is not None and found.own is not None
    np.testing.assert_allclose(found.synchronized.losses["1 replica"], [1, 1 / 2, 1 / 3], rtol=1e-15)
    assert found.own.losses["1 replica"] is found.synchronized.losses["1 replica"]
    assert found.synchronized.largest == pytest.approx(1e-7, rel=1e-6)
    assert found.own.largest == pytest.approx(0.01)
    assert found.synchronized.agrees and not found.own.agrees
    assert (found.config.model.num_layers, found.config.data.train_batch_size) == (14, 128)
    assert [line for line in said if line.startswith("training")] == [
        "training 1 of 3: 1 replica",
        "training 2 of 3: 2 processes, synchronized",
        "training 3 of 3: 2 processes, own statistics",
    ]
    assert said[1].startswith("  loss 1.0000 at step 1, 0.3333 at step 3 (")
    assert run_names(tmp_path) == ["1-devices", "2-processes-own-statistics", "2-processes-synchronized"]


@pytest.mark.long
def test_finished_runs_are_not_trained_again_and_layouts_can_be_added(pretended, monkeypatch, tmp_path):
    def compared(*layouts: str, **values: object) -> tuple[ReplicaComparison, list[str]]:
        said: list[str] = []
        found = compare_replicas(layouts, steps=3, output=tmp_path, announce=said.append, **values)
        return found, [line for line in said if line.startswith("training")]

    only, said = compared("1 replica", "2 logical devices", sync_batch_norm=True)
    assert only.own is None and len(said) == 2
    both, said = compared("1 replica", "2 logical devices", "2 processes")
    assert [line.endswith("already finished") for line in said] == [True, True, False, False, False]
    assert both.synchronized is not None and only.synchronized is not None
    np.testing.assert_array_equal(
        both.synchronized.losses["2 logical devices"], only.synchronized.losses["2 logical devices"]
    )
    monkeypatch.setattr(compare, "run_trial", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(InputError, match="holds runs with other settings: --learning-rate is 0.0002 there"):
        compared("1 replica", learning_rate=0.1)


def test_without_a_folder_the_settings_name_one(pretended, session_home):
    found = compare_replicas(("1 replica",), steps=2, announce=lambda line: None)
    assert found.folder.parent == session_home / "comparisons"
    assert found.folder.name.startswith("replicas-resnet8-shapes-")
    again = compare_replicas(("1 process",), steps=2, announce=lambda line: None, sync_batch_norm=True)
    assert again.folder == found.folder


def test_losses_that_are_rounded_otherwise_are_trained_anew(pretended, tmp_path):
    """Threads and XLA make no other run, whose result was taken for theirs."""

    def compared(**values: object) -> Path:
        return compare_replicas(("1 replica",), steps=2, announce=lambda line: None, **values).folder

    folders = {compared(**values) for values in ({}, {"num_intra_threads": 1}, {"xla": True})}
    assert len(folders) == 3
    compared(output=tmp_path / "out")
    with pytest.raises(InputError, match="other settings: --num-intra-threads is 0 there, 1 here"):
        compared(output=tmp_path / "out", num_intra_threads=1)


def test_a_preset_with_ghost_batches_is_compared_with_the_statistics_of_whole_batches(pretended, tmp_path):
    settings = {"steps": 2, "preset": "fast", "dataset": "shapes", "output": tmp_path / "out"}
    found = compare_replicas(("1 replica",), announce=lambda line: None, **settings)
    assert (found.config.data.ghost_batches, found.config.data.train_batch_size) == (1, 2000)
    with pytest.raises(InputError, match="--ghost-batches is 2 with --sync-batch-norm over several replicas"):
        compare_replicas(("2 logical devices",), ghost_batches=2, **settings)


def narrow(input_shape, num_classes):
    return f"a network for {input_shape} and {num_classes} classes"


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "depth"),
    [
        ({"model": "lenet"}, 5),
        ({"model": "nets.py:build"}, None),
        ({"model": "nets.py:build", "loss": "nets.py:build"}, None),
        ({"loss": "nets.py:build"}, 8),
        ({"model": narrow}, None),
        ({"metrics": ["auc", narrow]}, 8),
    ],
    ids=["name", "file", "file and loss", "loss", "function", "name and function"],
)
def test_other_networks_and_code_of_ones_own_are_trained(values, depth, pretended, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the processes get whole paths
    nets = tmp_path / "nets.py"
    nets.write_text("def build(*shapes): pass")

    def compared() -> ReplicaComparison:
        return compare_replicas(("1 replica",), steps=1, announce=lambda line: None, **values)

    found = compared()
    assert depth is None or found.config.model.num_layers == depth
    recorded = recorded_config(RunDirectory(found.folder / "1-devices")).flat()
    code = [recorded[name].rpartition("/") for name in values if ".py:" in recorded[name]]
    assert all(folder.startswith("/") for folder, _, _ in code)
    assert compared().folder == found.folder
    if "nets.py:build" in values.values():  # which another folder is for, as for the run's own name
        nets.write_text("def build(*shapes): return 1")
        assert compared().folder != found.folder
        nets.unlink()
        with pytest.raises(InputError, match="nets.py can't be read"):
            compared()


def test_changed_code_is_refused_with_what_replicas_has(pretended, tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text("def build(*shapes): pass")
    values = {"model": f"{nets}:build", "output": tmp_path / "out", "announce": lambda line: None}
    compare_replicas(("1 replica",), steps=1, **values)
    run = RunDirectory(tmp_path / "out" / "1-devices")
    record(run, {str(nets): nets.read_bytes()})  # as a training does
    nets.write_text("def build(*shapes): return 1")
    with pytest.raises(InputError, match="undo the change, or name another --output$"):
        compare_replicas(("1 replica",), steps=1, **values)


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("print('the reason'); sys.exit(1)", RuntimeError, r"failed \(exit code 1\).*\nthe reason"),
        ("os.kill(os.getpid(), 9)", RuntimeError, r"failed \(killed by SIGKILL\)"),
        (
            "from labkit.commands import main; sys.exit(main.main(['no']))",
            InputError,
            "^no command 'no'; see labkit --help$",
        ),
    ],
)
def test_the_error_of_a_failed_training_quotes_its_output(
    program, kind, words, monkeypatch, shapes, tmp_path
):
    failing = [sys.executable, "-c", f"import os, sys; {program}"]
    monkeypatch.setattr(Layout, "command", lambda self, config: failing)
    with pytest.raises(kind, match=words):
        compare_replicas(("1 replica",), output=tmp_path)


def test_a_run_with_missing_steps_is_an_error(pretended, monkeypatch, tmp_path):
    monkeypatch.setenv("LEFT_OUT", "1")
    with pytest.raises(RuntimeError, match="3 training rows; expected: one a step from 1 to 4"):
        compare_replicas(("1 replica",), steps=4, output=tmp_path)


def test_a_missing_data_set_is_prepared_first(pretended, monkeypatch, shapes_dir, tmp_path):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    asked = []

    def prepare(trial: Trial, signals: list[int]) -> TrialEnd:
        asked.append(json.loads(trial.command[-1])["data"]["dataset"])
        (tmp_path / "data").symlink_to(shapes_dir)
        return TrialEnd(0, "", 0.0, None)

    monkeypatch.setattr(trials, "run_trial", prepare)
    compare_replicas(("1 replica",), steps=1)
    assert asked == ["shapes"]


# ---- what is shown -------------------------------------------------------------------------------------


def test_the_table_of_known_losses():
    found = comparison(
        losses_of(**{"2_processes": 3e-6, "4_logical_devices": 0}), losses_of(False, **{"2_processes": 0.01})
    )
    assert found.synchronized is not None
    assert found.synchronized.reference == "1 replica"
    assert found.synchronized.largest == pytest.approx(3e-6)
    title, _, name, header, *rows = str(found).splitlines()
    assert title == "resnet8 on shapes, batch 128, learning rate 0.0002, float32"
    assert name == "Synchronized batch normalization"
    assert header.split()[-5:] == ["largest", "difference", "at", "step", "agrees"]
    assert rows[0].split() == ["1", "replica", "2.500000", "2.000000", "reference"]
    assert rows[1].split() == ["2", "processes", "2.500000", "2.000000", "3.0e-06", "2", "yes"]
    [own] = [row for row in rows[3:] if row.startswith("2 processes ")]
    assert own.split()[-3:] == ["1.0e-02", "2", "no"]
    assert repr(found) == str(found)
    text = found.as_markdown()
    assert text.count("| 1 replica | 2.500000 |") == 2 and text.count("## ") == 2
    assert "All layouts agree" in text and "Not within" in text
    first, second = json.loads(found.as_json())["comparisons"]
    assert (first["sync_batch_norm"], first["agrees"], first["tolerance"]) == (True, True, 1e-5)
    assert (second["sync_batch_norm"], second["agrees"], second["reference"]) == (False, False, "1 replica")
    assert second["layouts"][1]["losses"] == [2.5, 2.26, 2.0]
    html = found._repr_html_()
    assert html.count("<tr>") == 7 and "replica&#x27;s own" in html and "sum gradients" in html


def test_it_is_said_in_words_whether_the_layouts_agree_and_why_not():
    def said(part: LayoutLosses) -> str:
        return part.verdict

    agreed = said(losses_of(**{"2_processes": 3e-6}))
    assert agreed.startswith("All layouts agree with 1 replica within 1e-05 nats.")
    assert "another order" in agreed and "float32 keeps 7 digits" in agreed
    rounded = said(losses_of(**{"2_processes": 3e-6, "4_logical_devices": 2e-5}))
    assert "of 1 replica: 4 logical devices (by up to 2.0e-05, first at step 2)" in rounded
    assert "learning rate" in rounded and "--precision float64" in rounded
    assert "--precision" not in said(losses_of(precision="float64", **{"2_processes": 1.0}))
    assert "bfloat16 keeps 3" in said(losses_of(precision="mixed_bfloat16", **{"2_processes": 1.0}))
    own = said(losses_of(False, **{"2_processes": 0.01, "2_logical_devices": 0.01, "4_processes": 0.02}))
    assert "its part of the batch, which is another computation, not rounding" in own
    assert own.endswith("With as many replicas, the losses agree: 2 processes and 2 logical devices.")
    alike = said(losses_of(False, **{"2_processes": 0.01, "2_logical_devices": 0.02}))
    assert "As many replicas" not in alike and "as many replicas" not in alike
    assert said(losses_of()).startswith("Only 1 replica was trained")
    assert losses_of().largest == 0


@pytest.mark.long
def test_the_figure_shows_losses_and_differences():
    found = comparison(
        losses_of(**{"2_processes": 3e-6, "4_logical_devices": 0}), losses_of(False, **{"2_processes": 1e-2})
    )
    figure = plots.replica_curves(found)
    losses, own, apart, apart_of_second = figure.axes
    assert losses.get_title(loc="left") == "Synchronized batch normalization"
    assert own.get_title(loc="left") == "Each replica's own batch statistics"
    drawn = {line.get_label(): line.get_xydata() for line in losses.get_lines()}
    assert list(drawn) == ["1 replica", "2 processes", "4 logical devices"]
    np.testing.assert_array_equal(drawn["1 replica"], [[1, 2.5], [2, 2.25], [3, 2.0]])
    assert apart.get_yscale() == "log"
    differences = {line.get_label(): line.get_ydata() for line in apart.get_lines()}
    assert differences["2 processes"][1] == pytest.approx(3e-6)
    # A logarithmic scale has no zero, so a difference of 0 is drawn at the lower edge.
    np.testing.assert_allclose(differences["4 logical devices"], apart.get_ylim()[0])
    assert apart_of_second.get_ylim() == apart.get_ylim()
    # A layout has one colour and one marker in all panels, and no two layouts share either.
    looks = {line.get_label(): (line.get_color(), line.get_marker()) for line in losses.get_lines()}
    assert all(looks[line.get_label()] == (line.get_color(), line.get_marker()) for line in own.get_lines())
    assert all(len(set(column)) == 3 for column in zip(*looks.values(), strict=True))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(drawn)
    assert plots.png(figure)


def test_the_module_needs_no_tensorflow():
    program = (
        "import sys, labkit; labkit.compare_replicas; "
        "from labkit.commands import compare; sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
