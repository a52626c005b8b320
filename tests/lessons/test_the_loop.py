"""The quadratic, the directions and the surface have the properties that the lesson states."""

import json

import numpy as np
import pytest

from course.lessons import resnet, the_loop
from course.lessons.the_loop.figures import CURVATURE, MINIMUM
from labkit.config import OptimizerConfig
from labkit.figures import widgets as schedule


def test_descent_reaches_the_minimum_and_decay_moves_it_by_the_formula():
    np.testing.assert_allclose(the_loop.descend(0.03, 0.5, steps=400)[-1], MINIMUM, atol=1e-4)
    ends = the_loop.descend(0.03, 0.5, 3.0, steps=400)[-1]
    np.testing.assert_allclose(ends, CURVATURE * MINIMUM / (CURVATURE + 3.0), atol=1e-4)


def test_a_filter_of_a_direction_has_the_norm_of_the_networks_filter():
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape).astype(np.float32) for shape in ((3, 3, 4, 5), (7,), (6, 2))]
    kernel, vector, dense = the_loop.filter_normalized(weights, 1)
    for found, weight, axes in ((kernel, weights[0], (0, 1, 2)), (dense, weights[2], 0)):
        np.testing.assert_allclose((found**2).sum(axis=axes), (weight**2).sum(axis=axes), rtol=1e-5)
    assert not vector.any()
    assert not np.allclose(kernel, the_loop.filter_normalized(weights, 2)[0])


def test_the_middle_of_a_surface_is_the_networks_loss_and_the_weights_stay():
    model = resnet.small_network(8)
    images = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype(np.float32)
    labels, before = np.arange(6, dtype=np.int32), model.get_weights()
    surface = the_loop.loss_surface(model, images, labels, points=3)
    logits = model(images, training=True).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert surface.center == pytest.approx(-log_p[np.arange(6), labels].mean(), rel=1e-4)
    assert surface.losses.shape == (3, 3)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


def test_ratios_are_drawn_for_layers_with_kernels(tmp_path):
    row = {
        "layers": ["stem_conv1", "stem_norm1", "stem_relu1", "logits"],
        "update_ratio": [0.1, 0.2, None, 0.01],
    }
    lines = [json.dumps({"step": step, "wall_time": 1.0, **row}) for step in (1, 2)]
    (tmp_path / "layers.jsonl").write_text("\n".join(lines) + "\n")
    rows = the_loop.update_ratios(tmp_path)
    axis = the_loop.ratio_figure(rows).axes[0]
    assert axis.lines[0].get_ydata().tolist() == [0.1, 0.01]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["stem conv1", "logits"]


def test_the_designer_draws_the_schedule_that_its_controls_say(monkeypatch):
    drawn = []
    draw = schedule.schedule_figure

    def watched(configs, *arguments):
        drawn.append(configs)
        return draw(configs, *arguments)

    monkeypatch.setattr(schedule, "schedule_figure", watched)
    box = schedule.schedule_designer(0.1, 10, 20)
    name, rate, warmup, _ = box.children[0].children
    assert box.children[1].layout.display == "none"  # the static figure shows the four
    name.value, rate.value, warmup.value = "cosine", 1.0, 2
    assert drawn[-1] == {
        "cosine": OptimizerConfig(learning_rate=1.0, learning_rate_schedule="cosine", warmup_steps=40)
    }
    assert box.children[1].layout.display is None


def test_a_drawn_schedule_reaches_its_peak():
    config = OptimizerConfig(learning_rate=0.4, learning_rate_schedule="one_cycle")
    figure = schedule.schedule_figure({"one_cycle": config}, 400, 100)
    assert max(figure.axes[0].lines[0].get_ydata()) == pytest.approx(0.4, rel=0.02)
