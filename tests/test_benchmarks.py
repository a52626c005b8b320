"""The benchmarks: their arithmetic, the fairness of their peers, and a tiny run of each."""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks import __main__ as summary
from benchmarks import (
    ablation,
    accuracy,
    common,
    dashboard_curves,
    filters,
    follow,
    forms,
    inference,
    input_pipeline,
    inspection,
    links,
    mixed_pictures,
    prepare_images,
    roofline,
    scaling,
    startup,
    telemetry,
    train_step,
    trainings,
    transfer,
)
from benchmarks.common import ROOT, prepared_data, take_turns
from benchmarks.forms import Form
from benchmarks.processes import (
    ALLOCATORS,
    Training,
    Turns,
    environment_with,
    images_per_second,
    train_command,
)
from benchmarks.report import Figure, Goal, Report, read_figures
from labkit.config import Config
from labkit.config.presets import merged_with_preset, preset_values
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory

# ---- figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "met"),
    [("at least", [False, True, True]), ("at most", [True, True, False]), ("below", [True, False, False])],
)
def test_goals_hold_at_their_bound_as_their_words_say(bound, met):
    goal = Goal(bound, 1.3)
    assert [goal.is_met(value) for value in (1.29, 1.3, 1.31)] == met
    assert not goal.is_met(float("nan"))


def test_the_median_decides_not_the_mean_or_the_best():
    figure = Figure("ratio", "x", (1.2, 9.0, 1.25, 1.2, 1.4), Goal("at least", 1.3))
    assert figure.median == 1.25
    assert figure.met is False


def test_a_figure_without_repeats_is_refused():
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
    assert read_figures(path) == figures
    assert "met" in capsys.readouterr().out


def test_a_verdict_comes_from_the_raw_repeats_not_from_the_file(tmp_path):
    path = Report("name", "?", {}).finish([Figure("ratio", "x", (1.0,), Goal("at least", 1.3))], tmp_path)
    path.write_text(path.read_text().replace('"met": false', '"met": true'))
    assert read_figures(path)[0].met is False


def test_the_summary_shows_goals_of_what_was_measured(tmp_path, capsys):
    figures = [Figure("ratio", "x", (1.0,), Goal("at least", 1.3)), Figure("told only", "s", (1.0,))]
    Report("telemetry", "?", {}).finish(figures, tmp_path)
    capsys.readouterr()
    summary.main(["--summary", "--output", str(tmp_path), "telemetry", "startup"])
    shown = capsys.readouterr().out
    assert "missed" in shown
    assert "told only" not in shown
    assert "startup: no result" in shown
    assert f"Python {platform.python_version()}" in shown


def test_every_script_is_run_by_the_summary():
    """A script's docstring begins with the question that it answers."""
    first = {path.stem: path.read_text().partition("\n")[0] for path in (ROOT / "benchmarks").glob("*.py")}
    assert {name for name, line in first.items() if line.endswith("?")} == set(summary.SCRIPTS)


# ---- arithmetic of the scripts -------------------------------------------------------------------------


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


def test_inference_is_compared_with_eager_and_compiled():
    speeds = {
        Form("labkit evaluate", "", "default"): [900.0],
        Form("PyTorch eager", "as it is", "default"): [600.0],
        Form("PyTorch eager", "folded", "default"): [750.0],
        Form("torch.compile", "frozen", "keeping"): [1000.0],
    }
    eager, compiled, *_ = forms.figures({"mixed_bfloat16": speeds}, inference.LABKIT, inference.GOALS)
    assert eager.name == "mixed_bfloat16: labkit evaluate (default) over PyTorch eager (folded, default)"
    assert (eager.repeats, eager.met) == ((1.2,), True)
    assert (compiled.repeats, compiled.met) == ((0.9,), False)


def test_turns_go_back_and_forth():
    order = []
    first, second = Form("a", "", "default"), Form("b", "", "default")
    turns = {first: lambda: order.append("a") or 1.0, second: lambda: order.append("b") or 2.0}
    assert take_turns(turns, 3) == {first: [1.0] * 3, second: [2.0] * 3}
    assert "".join(order) == "abbaab"


def test_an_allocator_is_in_force_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")
    monkeypatch.setenv("OTHER", "kept")
    known = {*ALLOCATORS["keeping"], "TF_CPU_ALLOCATOR_USE_BFC"}
    default, keeping = (environment_with(name) for name in ("default", "keeping"))
    assert not known & default.keys()
    assert {name: keeping.get(name) for name in known} == {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "100000000000",
        "MALLOC_TOP_PAD_": "268435456",
        "TF_CPU_ALLOCATOR_USE_BFC": None,
    }
    assert default["OTHER"] == keeping["OTHER"] == "kept"


def test_the_limit_of_work_is_that_of_its_arithmetic_or_its_bytes():
    assert roofline.Work(flops=2e9, bytes=1e9).limit(gflops=100.0, gigabytes=10.0) == pytest.approx(0.1)
    assert roofline.Work(flops=2e9, bytes=1e7).limit(gflops=100.0, gigabytes=10.0) == pytest.approx(0.02)


def test_pipelines_are_compared_with_the_better_peer():
    speeds = {"memory": [90.0], "streaming": [60.0], "per example, a": [20.0], "per example, b": [30.0]}
    waits = {"memory": [1.0], "streaming": [3.0]}
    figures = input_pipeline.figures(speeds, waits, {"JPEGs": [5.0]}, {"JPEGs": [4.0]})
    assert [figure.repeats for figure in figures[:2]] == [(3.0,), (2.0,)]
    assert [figure.met for figure in figures[:5]] == [True, False, True, False, True]


def test_the_speed_of_a_turn_counts_all_time_between_its_rows():
    rows = [{"step": step, "wall_time": time} for step, time in ((5, 10.0), (7, 10.5), (6, 11.0), (9, 12.0))]
    assert images_per_second(rows, batch_size=64) == 4 * 64 / 2.0


def test_waiting_is_weighted_by_the_length_of_the_steps():
    rows = [
        {"seconds_per_step": 1.0, "input_wait_fraction": 0.5},
        {"seconds_per_step": 9.0, "input_wait_fraction": 0.0},
    ]
    assert input_pipeline.wait_percent(rows) == pytest.approx(5.0)


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


@pytest.mark.long
def test_the_inspections_script_runs_and_writes_its_result(tmp_path, shapes, monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_CIFAR10", raising=False)
    flags = "--repeats 1 --steps 1 --num-layers 8 --batch-size 8"
    inspection.main([*flags.split(), "--output", str(tmp_path), "--data-dir", str(shapes.directory.parent)])
    figures = {figure.name: figure for figure in read_figures(tmp_path / "inspection.json")}
    assert set(inspection.VARIANTS) == {
        name.removesuffix(", of a run") for name in figures if "of a run" in name
    }
    assert all(figure.median > 0 for figure in figures.values() if figure.unit in ("s", "ms"))


# ---- peers ---------------------------------------------------------------------------------------------


def network_and_step(config: Config) -> tuple[Any, Any]:
    """Return labkit's network for images of CIFAR-10 and its training step for batches of 16."""
    import tensorflow as tf

    from labkit.models.registry import build_model
    from labkit.optim.optimizers import SGD
    from tests.steps import compiled_step

    network = build_model(config.model, num_classes=10, image_shape=(32, 32, 3))
    optimizer, counter = SGD(network, config.optimizer), tf.Variable(0, dtype=tf.int64)
    options = {"global_batch_size": 16, "label_smoothing": config.optimizer.label_smoothing}
    return network, compiled_step(tf.distribute.get_strategy(), network, optimizer, counter, **options)


@pytest.mark.long
def test_the_keras_peer_is_the_same_network_and_makes_the_same_update():
    import tensorflow as tf

    from benchmarks.keras_fit import compile_peer, make_peer

    # Decay large enough to be seen in three steps, in the weights and in the moving averages.
    values = {"weight_decay": 0.05, "weight_decay_mode": "decoupled", "batch_norm_decay": 0.5}
    config = Config.from_flat({"num_layers": 8, "train_batch_size": 16, **values})
    ours, step = network_and_step(config)
    peer = make_peer(config, num_classes=10, image_shape=(32, 32, 3))
    compile_peer(peer, config, steps_per_execution=1, jit_compile=False)
    peer.set_weights(ours.get_weights())
    generator = np.random.default_rng(0)
    before = [weight.copy() for weight in peer.get_weights()]
    for _ in range(3):
        images = generator.normal(size=(16, 32, 32, 3)).astype(np.float32)
        labels = generator.integers(0, 10, 16).astype(np.int32)
        metrics = step(tf.constant(images), tf.constant(labels), tf.constant(0.1), tf.constant(0.0))
        loss, accuracy, _ = metrics.numpy()
        peer.reset_metrics()
        assert peer.train_on_batch(images, labels) == pytest.approx([loss, accuracy], rel=1e-3)
    for mine, theirs in zip(ours.get_weights(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-4)
    moved = [np.abs(new - old).max() for new, old in zip(peer.get_weights(), before, strict=True)]
    assert min(moved) > 1e-3  # ten times the tolerance: all of them were updated


@pytest.mark.torch
def test_the_torch_peer_is_the_same_network_and_makes_the_same_update():
    """PyTorch pads strided convolutions on the other side: it gets kernels and images the other way round."""
    import tensorflow as tf
    import torch

    from benchmarks import torch_peer

    # Decay is PyTorch's kind; the rest is what the peer and processes.train_command both say.
    values = {"learning_rate": torch_peer.LEARNING_RATE, "momentum": torch_peer.MOMENTUM}
    values |= {"weight_decay": torch_peer.WEIGHT_DECAY, "weight_decay_mode": "l2"}
    config = Config.from_flat({"num_layers": 14, **values})  # two blocks a stage: with and without stride
    ours, step = network_and_step(config)
    peer = torch_peer.ResNet(14, 10).to(memory_format=torch.channels_last).train()
    with torch.no_grad():
        for mine, theirs in _weights_of_both(ours, peer):
            theirs.copy_(torch.from_numpy(mine.copy()))
    loss_of = torch_peer.make_loss(peer, "float32")
    optimizer = torch_peer.make_optimizer(peer)
    generator = np.random.default_rng(0)
    before = [theirs.detach().clone().numpy() for _, theirs in _weights_of_both(ours, peer)]
    for _ in range(3):
        images = generator.normal(size=(16, 32, 32, 3)).astype(np.float32)
        labels = generator.integers(0, 10, 16)
        rate = tf.constant(config.optimizer.learning_rate)
        metrics = step(tf.constant(images), tf.constant(labels, tf.int32), rate, tf.constant(0.0))
        turned = torch.from_numpy(images[:, ::-1, ::-1].copy()).permute(0, 3, 1, 2)
        optimizer.zero_grad()
        loss = loss_of(turned, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(float(metrics[0]), rel=1e-3)
    for (mine, theirs), old in zip(_weights_of_both(ours, peer), before, strict=True):
        new = theirs.detach().numpy()
        moved = np.abs(new - old).max()
        assert moved > 0
        assert np.abs(new - mine).max() < 0.02 * moved


def _weights_of_both(ours, peer) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield each weight of the Keras model in PyTorch's layout, kernels turned, and PyTorch's own."""
    import keras
    import torch

    from labkit.models.layers import BatchNormalization

    convolutions = [layer for layer in ours.layers if isinstance(layer, keras.layers.Conv2D)]
    theirs = [module for module in peer.modules() if isinstance(module, torch.nn.Conv2d)]
    for convolution, module in zip(convolutions, theirs, strict=True):
        yield convolution.kernel.numpy()[::-1, ::-1].transpose(3, 2, 0, 1), module.weight
    norms = [layer for layer in ours.layers if isinstance(layer, BatchNormalization)]
    theirs = [module for module in peer.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm, module in zip(norms, theirs, strict=True):
        yield norm.gamma.numpy(), module.weight
        yield norm.beta.numpy(), module.bias
        yield norm.moving_mean.numpy(), module.running_mean
        yield norm.moving_variance.numpy(), module.running_var
    logits = ours.get_layer("logits")
    yield logits.kernel.numpy().T, peer.logits.weight
    yield logits.bias.numpy(), peer.logits.bias


@pytest.mark.torch
def test_the_torch_peer_predicts_alike_with_its_norms_folded():
    import torch

    from benchmarks.torch_peer import ResNet, fold_norms

    torch.manual_seed(0)
    model = ResNet(14, 10)
    images = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        for _ in range(20):
            model(images)  # moves the moving averages
        expected = model.eval()(images)
        fold_norms(model)
        torch.testing.assert_close(model(images), expected, rtol=1e-3, atol=1e-4)
    assert not [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]


@pytest.mark.torch
def test_the_torch_peer_says_why_it_cannot_compile(shapes, tmp_path, monkeypatch):
    common.write_arrays(shapes, "test", tmp_path / "test.npz")
    told = {
        "task": "predict",
        "form": "compile",
        "precision": "float32",
        "arrays": str(tmp_path / "test.npz"),
    }
    told |= {"num_layers": 8, "batch_size": 4, "steps": 1}
    # A compiler that isn't there, and no cache of what another one made.
    environment = os.environ | {"CXX": "/no/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with Turns("torch_peer", tmp_path, told, environment) as peer:
        found = peer.turn()
    assert found.keys() == {"unavailable"}
    assert "ompiler" in found["unavailable"]


def test_without_pytorch_its_forms_are_left_out_and_the_way_to_it_is_told(monkeypatch, capsys):
    monkeypatch.setattr(train_step, "torch_is_installed", lambda: False)
    parser = argparse.ArgumentParser()
    options = argparse.Namespace(peers=None)
    left_out = train_step.choose_peers(parser, options)
    assert options.peers == ["plain", "steps_per_execution", "xla"]
    assert left_out.keys() == {"torch_eager", "torch_compile"}
    assert "make peers" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        train_step.choose_peers(parser, argparse.Namespace(peers=["plain", "torch_eager"]))
    assert ended.value.code == 2
    assert "--peers torch_eager: " in capsys.readouterr().err


def test_what_needs_pytorch_is_left_out_without_it(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(summary, "torch_is_installed", lambda: False)
    monkeypatch.setattr(summary, "_run", lambda name, options: ran.append(name) or True)
    assert summary.main(["--output", str(tmp_path)]) == 0
    assert set(ran) == set(summary.SCRIPTS) - {"inference", *summary.ONLY_WHEN_NAMED}
    assert "without inference: PyTorch" in capsys.readouterr().out
    monkeypatch.setattr(inference, "torch_is_installed", lambda: False)
    with pytest.raises(SystemExit, match="make peers"):
        inference.main([])


def test_the_peers_are_pinned_and_no_dependency_of_labkit():
    lines = (ROOT / "benchmarks" / "peers.txt").read_text().splitlines()
    pinned = [line.partition("==")[::2] for line in lines if not line.startswith("#")]
    assert pinned and all(version for _, version in pinned)
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    for name, _ in pinned:
        assert not any(line.startswith(f"{name}==") for line in locked)


@pytest.mark.long
def test_the_per_example_peer_yields_augmented_standardised_images_of_the_data_set(shapes, tmp_path):
    size = 4
    path = input_pipeline.write_examples(shapes, tmp_path)
    batch, labels = next(iter(input_pipeline.per_example_dataset(shapes, path, size, size)))
    _assert_augmented(shapes, batch.numpy(), labels.numpy())


@pytest.mark.torch
def test_the_torch_peer_yields_augmented_standardised_images_of_the_data_set(shapes, tmp_path):
    import torch

    from benchmarks.torch_peer import batches

    torch.manual_seed(0)
    common.write_arrays(shapes, "train", tmp_path / "train.npz")
    images, labels = next(batches(np.load(tmp_path / "train.npz"), 4))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len({image.numpy().tobytes() for image in images}) == 4
    _assert_augmented(shapes, images.permute(0, 2, 3, 1).numpy(), labels.numpy())


def _assert_augmented(shapes: Manifest, batch: np.ndarray, batch_labels: np.ndarray) -> None:
    """Each image of ``batch`` is a crop, or its mirror image, of a padded training image of its class."""
    from labkit.data.inputs import PADDING
    from labkit.data.shards import load_split

    images, labels = load_split(shapes, "train")
    padded = np.pad(images, [[0, 0], [PADDING, PADDING], [PADDING, PADDING], [0, 0]])
    assert batch.shape[1:] == shapes.image_shape
    pixels = 255.0 * (batch * np.array(shapes.channel_std) + np.array(shapes.channel_mean))
    np.testing.assert_allclose(pixels, pixels.round(), atol=1e-2)
    for image, label in zip(pixels.round().astype(np.uint8), batch_labels, strict=True):
        assert any((view == image).all((1, 2, 3)).any() for view in _views(padded[labels == label], size=32))


def _views(padded: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield every crop of all images, and its mirror image, without copying."""
    for top, left in itertools.product(range(padded.shape[1] - size + 1), repeat=2):
        crop = padded[:, top : top + size, left : left + size]
        yield crop
        yield crop[:, :, ::-1]


# ---- processes -----------------------------------------------------------------------------------------


def test_a_training_that_fails_says_why_and_leaves_no_process(tmp_path):
    with (
        Training(tmp_path, ["train", "--num-layers", "9"]) as training,
        pytest.raises(RuntimeError, match="(?s)made no step 1.*exit code 2.*--num-layers is 9"),
    ):
        training.start(1)
    assert training.process.returncode == 2


def test_a_failing_command_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="(?s)ended; exit code 2.*--num-layers is 9"):
        startup.seconds_of(["train", "--num-layers", "9"], tmp_path)


def test_data_are_shapes_where_there_is_no_cifar10(tmp_path, monkeypatch, shapes):
    monkeypatch.delenv("LABKIT_CIFAR10", raising=False)
    assert prepared_data(shapes.directory.parent).dataset == "shapes"


def test_sigterm_removes_what_a_script_made():
    script = (
        "import os, signal\n"
        "from benchmarks.common import work_folder\n"
        "with work_folder() as folder:\n"
        "    print(folder, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 128 + 15
    assert "labkit-bench-" in done.stdout
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_held_training_stands_still_and_is_gone_afterwards(tmp_path, shapes):
    small = argparse.Namespace(num_layers=8, batch_size=16)
    with Training(tmp_path, train_command(small, shapes)) as training:
        training.start(2)
        rows = training.turn(3)
        held = psutil.Process(training.process.pid)
        assert held.status() == psutil.STATUS_STOPPED
        assert [row["step"] for row in rows] == list(range(rows[0]["step"], rows[0]["step"] + 4))
        assert training.turn(2)[0]["step"] > rows[-1]["step"]
    assert not psutil.pid_exists(training.process.pid)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (
            "train_step",
            "--steps 2 --warmup-steps 1 --peers plain steps_per_execution --steps-per-execution 2 "
            "--allocators default",
        ),
        ("levers", "--steps 1 --precisions float32 --levers two_replicas_with_shared_statistics"),
        pytest.param(
            "inference",
            "--steps 1 --forms eager --allocators keeping --precisions float32 mixed_bfloat16",
            marks=pytest.mark.torch,
        ),
        ("input_pipeline", "--batches 2 --warmup-batches 1 --steps 2 --warmup-steps 1"),
        ("telemetry", "--rows 2 --steps 2 --warmup-steps 1"),
        ("startup", "--train-steps 20"),
        ("scaling", "--modes sync --steps 3 --warmup-steps 1"),
        ("follow", "--steps 4 --warmup-steps 1 --checkpoint-every-steps 2"),
    ],
)
def test_each_script_runs_and_writes_its_result(name, flags, tmp_path, shapes, monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_CIFAR10", raising=False)
    arguments = ["--repeats", "2", "--num-layers", "8", "--batch-size", "16", *flags.split()]
    arguments += ["--output", str(tmp_path), "--data-dir", str(shapes.directory.parent)]
    if name == "telemetry":  # nothing in it minds what was done in its process before
        telemetry.main(arguments)
        said = capsys.readouterr().out
    else:
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        said = done.stdout
    figures = read_figures(tmp_path / f"{name}.json")
    again = {1} if name == "startup" else set()  # the first start isn't counted there
    assert {len(figure.repeats) for figure in figures} == {2} | again
    assert name == "levers" or any(figure.goal for figure in figures)
    # Differences, which may be negative, are left out.
    differences = (", behind", "the same, started again")
    measured = [figure for figure in figures if not any(part in figure.name for part in differences)]
    assert all(0 <= value < float("inf") for figure in measured for value in figure.repeats)
    for unit in ("s", "GB", "images/s", "ms", "x"):
        assert all(min(figure.repeats) > 0 for figure in measured if figure.unit == unit)
    assert figures[0].name.split()[0] in said
    assert json.loads((tmp_path / f"{name}.json").read_text())["configuration"]["dataset"] == "shapes"


@pytest.mark.long
def test_both_gradients_of_filters_are_measured(tmp_path, capsys):
    filters.main(
        ["--repeats", "2", "--batch-size", "2", "--precisions", "float32", "--output", str(tmp_path)]
    )
    figures = read_figures(tmp_path / "filters.json")
    assert len(figures) == len(filters.SHAPES)
    assert all(len(figure.repeats) == 2 and min(figure.repeats) > 0 for figure in figures)
    assert "float32: 3 x 3 pixels, 256 channels" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_pictures_are_prepared_and_read_in_turns(tmp_path):
    folders = ["--output", str(tmp_path), "--data-dir", str(tmp_path)]
    prepare_images.main(["--repeats", "2", "--pictures", "200", *folders])
    figures = read_figures(tmp_path / "prepare_images.json")
    ours, ratio, theirs = (np.array(figure.repeats) for figure in figures)
    assert ratio == pytest.approx(ours / theirs) and (ours > 0).all()
    assert figures[0].goal == prepare_images.GOAL


@pytest.mark.long
def test_mixed_pictures_become_the_images_that_they_were_made_of(tmp_path, shapes, capsys):
    pictures = tmp_path / "pictures"
    mixed_pictures.main([str(pictures), "--dataset", "shapes", "--data-dir", str(shapes.directory.parent)])
    found = prepare(None, tmp_path / "data", images=pictures, skip_damaged=True).manifest
    empty, truncated, text = sorted(found.source["skipped"].values())
    assert (empty, truncated[:9], text[:13]) == ("an empty file", "damaged: ", "not a picture")
    images, _ = load_split(shapes, "test")
    read = np.concatenate([load_split(found, split)[0] for split in ("train", "validation", "test")])
    assert len(read) == len(images)
    written = {image.tobytes() for image in images}
    unchanged = sum(image.tobytes() in written for image in read) / len(read)
    assert unchanged > 0.3, "8 of 25 are whole PNG and BMP files"


@pytest.mark.long
@pytest.mark.slow
def test_the_roofline_counts_the_arithmetic_of_the_step_that_runs(tmp_path, shapes, monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_CIFAR10", raising=False)
    small = {"model": "fast", "width_factor": 0.125, "train_batch_size": 8}
    monkeypatch.setitem(roofline.NETWORKS, "fast", roofline.Network(small, 2, Goal("at least", 75.0)))
    flags = "--repeats 2 --networks fast --precisions float32"
    folders = ["--output", str(tmp_path), "--data-dir", str(shapes.directory.parent)]
    roofline.main([*flags.split(), *folders])
    figures = {figure.name: figure for figure in read_figures(tmp_path / "roofline.json")}
    assert (tmp_path / "roofline.png").stat().st_size > 10_000
    shares = [figure.median for figure in figures.values() if figure.unit == "%" and figure.goal is None]
    assert 80 < sum(shares) < 101
    from labkit.analysis.flops import training_flops
    from labkit.config.model import ModelConfig
    from labkit.models.registry import build_model

    place = {"dataset": "shapes", "data_dir": str(shapes.directory.parent), "num_gpus": 0}
    work = roofline.work_of_step(Config.from_flat({**small, **place}))
    config = ModelConfig(model="fast", width_factor=0.125)
    whole = build_model(config, num_classes=shapes.num_classes, image_shape=shapes.image_shape)
    assert sum(each.flops for each in work.values()) == 8 * training_flops(whole)


def test_a_script_that_fails_is_told_and_the_others_still_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(summary, "_run", lambda name, options: name != "startup")
    Report("telemetry", "?", {}).finish([Figure("cost", "%", (0.5,), Goal("at most", 1.0))], tmp_path)
    assert summary.main(["startup", "telemetry", "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "startup failed" in shown.err
    assert "cost" in shown.out


def test_unknown_benchmarks_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        summary.main(["speed"])
    assert ended.value.code == 2
    assert "train_step" in capsys.readouterr().err


def test_results_that_are_committed_are_of_this_format():
    for path in sorted((common.RESULTS).glob("*.json")):
        assert path.stem in summary.SCRIPTS
        least = 3 if path.stem == "accuracy" else 5  # seeds of whole trainings
        ratios = [figure for figure in read_figures(path) if figure.unit == "x"]
        measured = [figure for figure in ratios if not figure.name.endswith(", predicted")]
        assert all(len(figure.repeats) >= least for figure in measured), path


# ---- separate evaluation -------------------------------------------------------------------------------


def test_the_follower_is_compared_turn_by_turn_and_has_to_be_at_work():
    figures = follow.figures([400.0, 300.0, 200.0], [396.0, 303.0, 190.0], [99.0, 10.0, 20.0])
    assert figures[0].repeats == pytest.approx((0.99, 1.01, 0.95))
    assert [figure.met for figure in figures if figure.goal] == [True, False]


def test_a_pinned_process_has_one_core_and_the_parent_keeps_its_own():
    before = os.sched_getaffinity(0)
    core = max(before)
    with follow.pinned(core):
        told = subprocess.check_output(
            [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], text=True
        )
    assert told.strip() == str({core})
    assert os.sched_getaffinity(0) == before


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
    assert table[5] == "The prediction is off by 20% (median), 20% at most."


def test_windows_of_a_cluster_have_equal_numbers_of_steps():
    times = (0.0, 1.0, 2.0, 4.0, 6.0)
    rows = [{"step": step, "wall_time": time} for step, time in enumerate(times, start=7)]
    assert links.speeds_of(rows, images=10, windows=2) == (10.0, 5.0)
    assert links.lasts(rows, seconds=6.0, steps=4)
    assert not links.lasts(rows, seconds=6.1, steps=4)
    assert not links.lasts(rows, seconds=6.0, steps=5)


@pytest.mark.long
@pytest.mark.slow
def test_separate_processes_are_timed_while_all_of_them_train(tmp_path, shapes):
    place = ["--data-dir", str(shapes.directory.parent), "--dataset", "shapes", "--num-gpus", "0"]
    command = ["train", "--num-layers", "8", "--train-batch-size", "16", "--train-steps", "5000", *place]
    options = argparse.Namespace(seconds=0.5, repeats=2)
    runs = links.rows_of_separate(command, tmp_path, 2, options)
    spans = [(min(row["wall_time"] for row in rows), max(row["wall_time"] for row in rows)) for rows in runs]
    assert len(runs) == 2
    assert all(end - begin >= 0.5 for begin, end in spans)
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)


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


@pytest.mark.torch
def test_a_peer_that_was_warmed_up_trains_as_if_it_had_not_been(tmp_path):
    import torch

    from benchmarks import torch_recipes

    random = np.random.default_rng(0)
    arrays = {
        "images": random.integers(0, 256, (16_000, 32, 32, 3), np.uint8),
        "labels": random.integers(0, 10, 16_000),
        "mean": np.full(3, 0.5),
        "std": np.full(3, 0.25),
    }
    options = argparse.Namespace(precision="float32", form="eager")
    shown = torch.randn(32, 3, 32, 32)
    losses = []
    for warm in (False, True):
        torch.manual_seed(0)
        training = torch_recipes.airbench94_muon(arrays, options)
        if warm:
            torch_recipes.warm_up(training, arrays, images=32)
        for index in range(2):
            training.step(shown, torch.arange(32) % 10, index)
        losses.append(training.model(shown).detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_every_variant_of_the_ablation_and_every_recipe_can_be_run():
    for changes in ablation.VARIANTS.values():
        assert Config.from_flat({**preset_values("fast"), **changes})
    for recipe in accuracy.RECIPES.values():
        assert Config.from_flat(merged_with_preset(recipe.preset, recipe.changes))


# ---- dashboard -----------------------------------------------------------------------------------------


def test_a_row_is_late_until_the_charts_show_its_step_or_a_later_one():
    written = {1: 9.0, 2: 10.0, 3: 10.5, 4: 11.0, 5: 12.0}
    shown = [(1, 9.5), (3, 11.0), (5, 12.5)]
    assert dashboard_curves.delays(written, shown, 10.0, 12.0) == [1.0, 0.5, 1.5]
