"""A tiny run of each benchmark, and of the processes that they measure."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks import (
    filters,
    follow,
    inspection,
    links,
    mixed_pictures,
    prepare_images,
    roofline,
    search,
    telemetry,
)
from benchmarks.common import ROOT
from benchmarks.processes import (
    Training,
    train_command,
)
from benchmarks.report import Goal, read_figures
from labkit.config import Config
from labkit.data.prepare import prepare
from labkit.data.shards import load_split


def test_a_training_that_fails_says_why_and_leaves_no_process(tmp_path):
    with (
        Training(tmp_path, ["train", "--num-layers", "9"]) as training,
        pytest.raises(RuntimeError, match="(?s)made no step 1.*exit code 2.*--num-layers is 9"),
    ):
        training.start(1)
    assert training.process.returncode == 2


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
        ("inference", "--steps 1 --forms onnxruntime --allocators keeping --precisions float32"),
        pytest.param(
            "inference",
            "--steps 1 --forms eager --allocators keeping --precisions float32 mixed_bfloat16",
            marks=pytest.mark.peer("torch"),
        ),
        ("input_pipeline", "--batches 2 --warmup-batches 1 --steps 2 --warmup-steps 1 --jpeg-side 65"),
        ("telemetry", "--rows 2 --steps 2 --warmup-steps 1"),
        ("startup", "--train-steps 20"),
        ("scaling", "--repeats 1 --modes sync --steps 3 --warmup-steps 1"),
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
    # The first start isn't counted by startup.
    expected = {"startup": {1, 2}, "scaling": {1}}.get(name, {2})
    assert {len(figure.repeats) for figure in figures} == expected
    assert name == "levers" or "onnxruntime" in flags or any(figure.goal for figure in figures)
    # Differences, which may be negative, are left out.
    differences = (", behind", "the same, started again")
    measured = [figure for figure in figures if not any(part in figure.name for part in differences)]
    assert all(0 <= value < float("inf") for figure in measured for value in figure.repeats)
    for unit in ("s", "GB", "images/s", "ms", "x"):
        assert all(min(figure.repeats) > 0 for figure in measured if figure.unit == unit)
    assert figures[0].name.split()[0] in said
    assert json.loads((tmp_path / f"{name}.json").read_text())["configuration"]["dataset"] == "shapes"


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
    from labkit.analysis.architecture import training_flops
    from labkit.config.model import ModelConfig
    from labkit.models.registry import build_model

    place = {"dataset": "shapes", "data_dir": str(shapes.directory.parent), "num_gpus": 0}
    work = roofline.work_of_step(Config.from_flat({**small, **place}))
    config = ModelConfig(model="fast", width_factor=0.125)
    whole = build_model(config, num_classes=shapes.num_classes, image_shape=shapes.image_shape)
    assert sum(each.flops for each in work.values()) == 8 * training_flops(whole)


def test_a_pinned_process_has_one_core_and_the_parent_keeps_its_own():
    before = os.sched_getaffinity(0)
    core = max(before)
    with follow.pinned(core):
        told = subprocess.check_output(
            [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], text=True
        )
    assert told.strip() == str({core})
    assert os.sched_getaffinity(0) == before


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


def test_the_report_on_kept_searches_names_their_data_and_not_that_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "prepared_data", lambda folder: argparse.Namespace(dataset="shapes"))
    kept = ROOT / "benchmarks" / "results" / "search"
    search.main(["--runs", str(kept), "--output", str(tmp_path)])
    assert json.loads((tmp_path / "search.json").read_text())["configuration"]["dataset"] == "cifar10"
