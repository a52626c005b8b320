"""What a training says of itself at its start."""

from types import SimpleNamespace

import pytest

from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.training.console import lines_at_start
from labkit.training.network import Network
from labkit.training.plan import on_one_device

MANIFEST = SimpleNamespace(
    dataset="shapes", num_classes=3, image_shape=(32, 32, 3), splits={"train": None}, count=lambda split: 1000
)


def said(tmp_path, step: int = 0, **fields: object) -> str:
    config = Config.from_flat({"train_steps": 20, **fields})
    config, devices, data_format = on_one_device(config, num_gpus=0)
    network = Network(config, MANIFEST, devices, data_format)
    return "\n".join(lines_at_start(network, RunDirectory(tmp_path), step, resumed=step > 0))


def test_slow_moving_averages_are_noted(tmp_path):
    text = said(tmp_path, num_layers=8, batch_norm_decay=0.997)
    assert "note: with --batch-norm-decay 0.997, 94% of the moving averages" in text
    assert "still initial values after 20 steps" in text
    assert "after 1 step;" in said(tmp_path, num_layers=8, train_steps=1, batch_norm_decay=0.997)


def test_the_length_is_said_before_the_first_step(tmp_path):
    text = said(tmp_path, num_layers=8, train_steps=40, train_batch_size=50)
    assert "40 steps of 50 examples, 2 epochs, 2 validations, a test at the end" in text
    assert "the decay of the moving averages grows from 0.1 to 0.997" in text


@pytest.mark.parametrize(
    "fields",
    [{"model": "tutorial_cnn"}, {"num_layers": 8, "batch_norm_decay": 0.8}],
    ids=["a network without batch normalization", "a low decay"],
)
def test_there_is_no_note_where_nothing_lags(fields, tmp_path):
    assert "--batch-norm-decay" not in said(tmp_path, **fields)


def test_missing_rows_of_earlier_steps_are_told(tmp_path):
    rows = "".join(f'{{"split": "train", "step": {step}, "loss": 1.0}}\n' for step in range(1, 6))
    (tmp_path / "metrics.jsonl").write_text(rows)
    assert "has lost" not in said(tmp_path, step=5, num_layers=8)
    (tmp_path / "metrics.jsonl").write_text(rows[: len(rows) // 2])
    assert "metrics.jsonl has lost the rows of steps 3 to 5" in said(tmp_path, step=5, num_layers=8)


def test_smaller_images_at_first_explain_poor_evaluations(tmp_path):
    text = said(tmp_path, num_layers=8, train_steps=10, progressive_resizing="16:0.5,24:0.8")
    assert "begins with images of 16 pixels; evaluations use whole images, and" in text
    assert "near guessing until step 8" in text
    assert "evaluations use" not in said(tmp_path, num_layers=8)
