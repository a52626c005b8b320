"""A run with ``--inspect-every-steps``: the same training, a line for each inspected step, histograms."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labkit.run_directory import RunDirectory
from labkit.run_directory.disk import discard
from labkit.run_directory.layers import DISTRIBUTIONS, LEVELS, LayerReader, layer_rows_that_count
from labkit.run_directory.rows import RowReader
from tests.properties.harness import (
    assert_bit_equal,
    checkpoint_values,
    labkit,
    losses,
    metrics,
    train_arguments,
)
from tests.tiny import prepare_tiny

pytestmark = pytest.mark.long

STEPS, EVERY, SAVED = 8, 3, 2
FIELDS = {
    "train_steps": STEPS,
    "eval_batch_size": 20,
    "checkpoint_every_steps": SAVED,
    "keep_checkpoints": STEPS,
    "validate_every_steps": 0,
}
FIGURES = ("activation_mean", "activation_std", "zero_fraction", "gradient_norm", "update_ratio")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return prepare_tiny(tmp_path_factory.mktemp("data")).directory.parent


def train(job_dir: Path, data_dir: Path, **fields: object) -> Path:
    assert labkit(*train_arguments(job_dir, data_dir=data_dir, **FIELDS | fields)) == 0
    return job_dir


@pytest.fixture(scope="module")
def inspected(data_dir, tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("inspected") / "run", data_dir, inspect_every_steps=EVERY)


def layers(job_dir: Path) -> RowReader:
    reader = RowReader(RunDirectory(job_dir).layers_path)
    reader.poll()
    return reader


def test_losses_and_weights_are_those_of_a_run_that_is_not_inspected_bit_by_bit(
    inspected, data_dir, tmp_path
):
    plain = train(tmp_path / "run", data_dir)
    assert losses(inspected) == losses(plain)
    assert_bit_equal(checkpoint_values(inspected, STEPS), checkpoint_values(plain, STEPS))
    assert not RunDirectory(plain).layers_path.exists()
    assert not (plain / "events" / "extras").exists()


def test_every_inspected_step_has_a_line(inspected):
    rows = layers(inspected).rows
    assert [row["step"] for row in rows] == [3, 6]
    for row in rows:
        names = row["layers"]
        assert names[:3] == ["stem_conv1", "stem_norm1", "stem_relu1"] and names[-1] == "logits"
        assert row.keys() == {"step", "wall_time", "layers", *FIGURES, *DISTRIBUTIONS}
        quantiles = {kind: dict(zip(names, row[kind], strict=True)) for kind in DISTRIBUTIONS}
        assert quantiles["weight_quantiles"]["stage1_block1_relu1"] is None
        assert quantiles["activation_quantiles"]["stage1_block1_relu1"][0] == 0
        for found in (quantiles[kind]["logits"] for kind in DISTRIBUTIONS):
            assert len(found) == len(LEVELS) and found == sorted(found)
        assert {len(row[figure]) for figure in FIGURES} == {len(names)}
        by_name = dict(zip(names, zip(*(row[figure] for figure in FIGURES), strict=True), strict=True))
        assert by_name["stage1_block1_relu1"][3:] == (None, None)
        assert 0 < by_name["stage1_block1_relu1"][2] < 1
        assert by_name["stage3_block1_conv2"][3] > 0 and 0 < by_name["stage3_block1_conv2"][4] < 1


def test_a_resumed_run_inspects_the_steps_after_its_checkpoint_again(inspected, data_dir, tmp_path):
    whole = layers(inspected).rows
    resumed = tmp_path / "run"
    shutil.copytree(inspected, resumed)
    for step in (6, STEPS):
        shutil.rmtree(resumed / "checkpoints" / f"step-{step:08d}")
    # As a process leaves it that is killed while it writes a line.
    (resumed / "status.json").unlink()
    with open(resumed / "layers.jsonl", "a") as file:
        file.write('{"step": 9, "laye')
    train(resumed, data_dir, inspect_every_steps=EVERY)
    reader, points = LayerReader(RunDirectory(resumed).layers_path), metrics(resumed).resume_points
    rows = reader.poll()
    assert [row.step for row in rows] == [3, 6, 6] and not reader.damaged_lines
    assert [point.step for point in points] == [4]
    counting = layer_rows_that_count(rows, points)
    assert [(row.step, row.values) for row in counting] == [
        (row["step"], {figure: tuple(row[figure]) for figure in FIGURES}) for row in whole
    ]


def test_tensorboard_reads_a_histogram_of_each_layer_and_weight(inspected):
    events = EventAccumulator(str(inspected / "events" / "extras"), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    names = layers(inspected).rows[0]["layers"]
    assert {tag.removeprefix("activations/") for tag in tags if tag.startswith("activations/")} == set(names)
    assert {"gradients/stem_conv1/kernel", "weights/stem_conv1/kernel"} <= set(tags)
    assert {"weights/stem_norm1/moving_mean"} <= set(tags)
    assert events.SummaryMetadata(tags[0]).plugin_data.plugin_name == "histograms"
    for tag in tags:
        assert [event.step for event in events.Tensors(tag)] == [3, 6]
    [_, event] = events.Tensors("weights/stem_conv1/kernel")
    left, right, count = np.frombuffer(event.tensor_proto.tensor_content).reshape(-1, 3).T
    assert count.sum() == pytest.approx(3 * 3 * 3 * 16)
    assert (left < right).all()


def test_a_run_that_starts_anew_keeps_no_line(inspected, tmp_path):
    run = RunDirectory(shutil.copytree(inspected, tmp_path / "run"))
    discard(run)
    assert not run.layers_path.exists()
