"""``labkit profile``: a real one of a small network, what it prints, what it refuses."""

import json
import re
from dataclasses import replace

import pytest

from labkit.commands import main as cli
from labkit.experiments import profile as profiling
from labkit.experiments.profile import KINDS, KindTime, Profile, StepTimes, read_trace
from labkit.run_directory import RunDirectory
from labkit.tensorboard.log_folder import log_folder
from labkit.training import plan
from tests.commands.in_process import answer, refused

PROFILE = Profile(
    model="resnet20",
    parameters=269722,
    device="CPU",
    precision="mixed_bfloat16",
    batch_size=128,
    steps=4,
    seconds_per_step=0.25,
    waited_per_step=0.0005,
    cpu_seconds_per_step=0.475,
    flops_per_step=25_000_000_000,
    ceiling_gflops=200.0,
    times=StepTimes(
        steps=4,
        seconds=0.3,
        idle_seconds=0.03,
        kinds=(
            KindTime("pooling", 2.0, 0.07, ("_MklNativeMaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad")),
            KindTime("convolution, forward", 19.0, 0.2, ("_MklNativeConv2D",)),
        ),
    ),
)


@pytest.fixture
def asked(monkeypatch):
    """Put ``PROFILE`` in the place of measuring; return what was asked for."""
    calls = []

    def fake(config, *, steps, output):
        calls.append((config, steps, output))
        return PROFILE

    monkeypatch.setattr(profiling, "profile_training", fake)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return calls


def rows_of(shown: str) -> dict[str, list[str]]:
    """Return the cells behind the name of each row of the table."""
    lines = shown.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("kind of operation"))
    last = next(place for place, line in enumerate(lines) if line.startswith("a step"))
    rows = {
        name: cells for name, *cells in (re.split(r"\s{2,}", line) for line in lines[first + 1 : last + 1])
    }
    rows["nothing runs"].insert(0, "")
    return rows


def test_the_table_has_the_longest_first_and_adds_up(asked, capsys):
    assert cli.main(["profile", "--preset", "smoke", "--steps", "4", "--num-layers", "14"]) == 0
    shown = capsys.readouterr().out
    rows = rows_of(shown)
    assert [(name, *cells[:3]) for name, cells in rows.items()] == [
        ("convolution, forward", "19", "200.00", "66.7%"),
        ("pooling", "2", "70.00", "23.3%"),
        ("nothing runs", "", "30.00", "10.0%"),
        ("a step", "21", "300.00", "100.0%"),
    ]
    assert rows["pooling"][3] == "MaxPool, MaxPoolGrad, AvgPool, …"
    assert "250.0 ms a step, 512 examples/s" in shown and "1.90 cores busy" in shown
    assert "25.0 GFLOP a step" in shown
    assert "100 GFLOP/s: 50% of the 200 GFLOP/s that large bfloat16 matrix products" in shown
    config, steps, output = asked[0]
    assert (config.model.num_layers, config.data.train_batch_size, steps, output) == (14, 32, 4, None)


def test_smaller_images_are_told_and_a_gpus_step_is_left_to_tensorboard(asked, monkeypatch):
    assert "--progressive-resizing" not in answer("profile").out
    monkeypatch.setattr(f"{__name__}.PROFILE", replace(PROFILE, image_size=24))
    said = answer("profile").out
    assert "images of 24 x 24 pixels, with which --progressive-resizing begins" in said
    monkeypatch.setattr(f"{__name__}.PROFILE", replace(PROFILE, times=None))
    said = answer("profile").out
    assert "for the CPU only" in said and "512 examples/s" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--steps 0", ["--steps is 0", "1 to 1000"]),
        ("--steps 1001", ["--steps is 1001"]),
        ("--steps many", ["'many'; allowed: a whole number"]),
        ("--model mlp", ["--model is 'mlp'", "resnet"]),
        ("--num-layers 9", ["--num-layers is 9"]),
        ("--job-dir somewhere", ["--job-dir is 'somewhere'", "--output"]),
        ("--worker-hosts a:1,b:2 --job-name worker --task-index 0", ["worker:0", "TF_CONFIG"]),
        ("TF_CONFIG", ["worker:1"]),
    ],
)
def test_bad_input_is_one_line_before_anything_is_measured(flags, words, asked, monkeypatch):
    if flags == "TF_CONFIG":
        cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
        flags = ""
    line = refused("profile", *flags.split())
    assert not asked
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--output file", "is not a directory"),
        ("--train-batch-size 100000", "allowed: at most"),
        ("--progressive-resizing 40:0.5", "images of 32 x 32: at most 31"),
        ("--data-dir nothing", "holds no prepared data set"),
    ],
)
def test_what_can_be_refused_without_tensorflow_is(flags, words, tmp_path, shapes_dir, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(plan, "import_tensorflow", lambda: pytest.fail("TensorFlow was imported"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert words in refused("profile", "--data-dir", shapes_dir, *flags.split())


@pytest.mark.long
@pytest.mark.slow
def test_a_real_profile_counts_what_the_network_has(tmp_path, shapes_dir, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    command = ["profile", "--num-layers", "8", "--train-batch-size", "16", "--data-dir", str(shapes_dir)]
    command += ["--steps", "6", "--output", str(tmp_path / "out" / "events"), "--num-gpus", "0"]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    rows = rows_of(shown)
    assert set(rows) == {*KINDS, "nothing runs", "a step"}
    # Seven convolutions with a normalization behind each; nobody asks for the images' gradient.
    counts = {kind: int(rows[kind][0].replace(",", "")) for kind in KINDS}
    assert counts["convolution, forward"] == counts["convolution, gradient of filters"] == 7
    assert counts["convolution, gradient of inputs"] == 6
    assert counts["batch normalization"] == 14
    # One update of every weight and velocity at least.
    assert counts["optimizer update"] >= 7 + 14 + 2
    assert counts["input"] > 0
    milliseconds = {name: float(cells[1].replace(",", "")) for name, cells in rows.items()}
    whole = milliseconds.pop("a step")
    assert sum(milliseconds.values()) == pytest.approx(whole, abs=0.01 * len(rows))
    share = re.search(r"([\d,]+) GFLOP/s: (\d+)% of the ([\d,]+) GFLOP/s", shown)
    assert share and int(share[3].replace(",", "")) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # In the events of a run, TensorBoard finds the trace; its operations have the network's scopes.
    with log_folder(lambda: [RunDirectory(tmp_path / "out")]) as logs:
        assert list(logs.path.glob("out/plugins/profile/*/*.xplane.pb"))
        planes = read_trace(logs.path / "out").planes
    names = {about.name for plane in planes for about in plane.event_metadata.values()}
    assert any("stage2/block1/conv1" in name for name in names)
