"""What a training says at its start; its progress in a notebook is one output, complete when saved."""

import itertools
import re
from types import SimpleNamespace

import IPython.display
import pytest

from labkit.config import Config
from labkit.models.initial_weights import weights_by_name
from labkit.run_directory import RunDirectory
from labkit.training.console import _NotebookBar, lines_at_start, note_of_new_averages
from labkit.training.network import Network
from labkit.training.plan import on_one_device
from labkit.training.telemetry import Pace


class Handle:
    """Stands for the display handle; keeps what is shown."""

    def __init__(self, shown):
        self.shown = shown

    def update(self, bundle, raw):
        assert raw
        self.shown = bundle


@pytest.fixture
def handle(monkeypatch):
    handle = Handle(None)

    def display(bundle, raw, display_id):
        handle.shown = bundle
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(_NotebookBar, "SECONDS_BETWEEN_UPDATES", 0)
    return handle


def points(html: str) -> list[tuple[float, float]]:
    (text,) = re.findall(r"points='([^']*)'", html)
    return [tuple(map(float, point.split(","))) for point in text.split()]


def test_what_stays_is_the_last_state_in_text_and_html(handle):
    bar = _NotebookBar(0, 200)
    bar.update(50, "loss <1>")
    bar.stop()
    assert handle.shown["text/plain"] == "50/200 steps (25%)  loss <1>"
    assert "width:25.00%" in handle.shown["text/html"]
    assert "loss &lt;1&gt;" in handle.shown["text/html"]
    assert "<svg" not in handle.shown["text/html"]


def test_losses_become_a_curve_over_the_whole_run(handle):
    bar = _NotebookBar(0, 4)
    for step, loss in enumerate((4.0, 2.0, float("nan"), 1.0), 1):
        bar.update(step, "", loss)
    width, height = _NotebookBar.WIDTH, _NotebookBar.HEIGHT
    assert points(handle.shown["text/html"]) == [
        (width / 4, 0),
        (width / 2, height / 2),
        (width, height * 3 / 4),
    ]


def test_a_long_run_keeps_a_bounded_number_of_points_over_all_of_it(handle):
    total = 10 * _NotebookBar.MAX_POINTS
    bar = _NotebookBar(0, total)
    for step in range(1, total + 1):
        bar.update(step, "", float(step))
    drawn = points(handle.shown["text/html"])
    assert _NotebookBar.MAX_POINTS / 4 <= len(drawn) <= _NotebookBar.MAX_POINTS
    assert drawn[0][0] < 0.02 * _NotebookBar.WIDTH
    assert drawn[-1][0] > 0.98 * _NotebookBar.WIDTH
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(drawn)]
    assert max(gaps) == pytest.approx(min(gaps), abs=0.2)


# ---- at the start -----------------------------------------------------------------------------------------

MANIFEST = SimpleNamespace(
    multi_label=False,
    targets="class",
    target_mean=None,
    dataset="shapes",
    num_classes=3,
    image_shape=(32, 32, 3),
    splits={"train": None},
    count=lambda split: 1000,
)


def network_of(**fields: object) -> Network:
    config = Config.from_flat({"train_steps": 20, **fields})
    config, devices, data_format = on_one_device(config, num_gpus=0)
    return Network(config, MANIFEST, devices, data_format)


def said(tmp_path, step: int = 0, **fields: object) -> str:
    network = network_of(**fields)
    return "\n".join(lines_at_start(network, RunDirectory(tmp_path), step, resumed=step > 0))


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        (
            {"batch_norm_decay": 0.997},
            ["--batch-norm-decay 0.997, 94% of the moving averages", "after 20 steps"],
        ),
        ({"batch_norm_decay": 0.997, "train_steps": 1}, ["still initial values after 1 step;"]),
        ({"batch_norm_decay": 0.8}, []),
        ({"model": "tutorial_cnn", "num_layers": None}, []),
        (
            {"train_steps": 40, "train_batch_size": 50},
            [
                "40 steps of 50 examples, 2 epochs, 2 validations, a test at the end",
                "grows from 0.1 to 0.997",
            ],
        ),
        (
            {"train_steps": 10, "progressive_resizing": "16:0.5,24:0.8"},
            ["--progressive-resizing makes training images smaller until step 8; evaluations use whole"],
        ),
    ],
)
def test_the_length_is_said_and_what_lags_is_noted(fields, noted, tmp_path):
    text = said(tmp_path, **{"num_layers": 8, **fields})
    assert all(words in text for words in noted), text
    assert ("note: with --batch-norm-decay" in text) == (fields.get("batch_norm_decay") == 0.997)
    assert ("evaluations use" in text) == ("progressive_resizing" in fields)


@pytest.mark.parametrize("stages", ["16:0.32,24:0.7", "16:0.3,28:1"])
def test_the_time_left_grows_with_the_pixels_of_the_images(stages):
    network = network_of(num_layers=8, progressive_resizing=stages)
    sizes = [network.image_size_at(step) or 32 for step in range(20)]
    seconds = [0.15 + 0.85 * (size / 32) ** 2 for size in sizes]
    pace = Pace(10, lambda step: (network.work_after(step), 0))
    for step in range(1, 21):
        compiles = step == 1 or sizes[step - 1] != sizes[step - 2]
        if compiles:
            pace.leave_out_next()
        pace.add(step, 30.0 if compiles else seconds[step - 1], 0.0)
        if step > 1:
            assert pace.seconds_left(step) == pytest.approx(sum(seconds[step:]))


def test_new_averages_beside_loaded_weights_are_noted():
    def noted(**fields: object) -> list[str]:
        config, devices, data_format = on_one_device(
            Config.from_flat({"num_layers": 8, "train_steps": 20, **fields}), num_gpus=0
        )
        network = Network(config, MANIFEST, devices, data_format)
        names = list(weights_by_name(network.model))
        assert not note_of_new_averages(network, names)
        return note_of_new_averages(network, [name for name in names if not name.startswith("stage3")])

    assert noted(batch_norm_decay=0.8) == []
    [line] = noted()
    assert "averages of stage3_block1_norm1, stage3_block1_norm2 are new, and 94% of them" in line


def test_missing_rows_of_earlier_steps_are_told(tmp_path):
    rows = "".join(f'{{"split": "train", "step": {step}, "loss": 1.0}}\n' for step in range(1, 6))
    (tmp_path / "metrics.jsonl").write_text(rows)
    assert "has lost" not in said(tmp_path, step=5, num_layers=8)
    (tmp_path / "metrics.jsonl").write_text(rows[: len(rows) // 2])
    assert "metrics.jsonl has lost the rows of steps 3 to 5" in said(tmp_path, step=5, num_layers=8)
