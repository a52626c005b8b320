"""What an inspected step says, against NumPy; and that it changes nothing."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.inspection.observer import (
    EDGES,
    NUM_BUCKETS,
    SAMPLE_SIZE,
    StepObserver,
    bucket_counts,
    evenly_spaced,
    observed_layers,
    quantiles,
    read_observation,
)
from labkit.models.layer_factory import LayerFactory
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from labkit.run_directory.layers import LEVELS
from labkit.training.network import Network
from labkit.training.plan import on_one_device
from labkit.training.step import make_train_step

BATCH, SIDE, CHANNELS, CLASSES = 6, 4, 2, 3
RATE, DECAY, CLIP = 0.1, 0.05, 0.01


def tiny_network() -> keras.Model:
    """A convolution of 1x1, batch normalization, ReLU, average, logits; in float64."""
    layers = LayerFactory(dtype="float64", seed=1, batch_norm_epsilon=1e-3)
    images = keras.Input((SIDE, SIDE, CHANNELS), name="images", dtype="float64")
    with layers.name_scope("stage1"):
        x = layers.norm_relu(layers.conv(images, 4, 1))
    return keras.Model(images, layers.logits(layers.global_average(x), CLASSES))


def outputs_of(weights: dict[str, np.ndarray], images: np.ndarray) -> dict[str, np.ndarray]:
    """The network's layers, once more in NumPy."""
    conv = images @ weights["stage1_conv1/kernel"][0, 0]
    deviation = conv - conv.mean((0, 1, 2))
    norm = deviation / np.sqrt(conv.var((0, 1, 2)) + 1e-3)
    norm = norm * weights["stage1_norm1/gamma"] + weights["stage1_norm1/beta"]
    relu = np.maximum(norm, 0)
    pooled = relu.mean((1, 2))
    return {
        "stage1_conv1": conv,
        "stage1_norm1": norm,
        "stage1_relu1": relu,
        "global_average1": pooled,
        "logits": pooled @ weights["logits/kernel"] + weights["logits/bias"],
    }


def loss_of(weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> float:
    logits = outputs_of(weights, images)["logits"]
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[range(BATCH), labels]))


def gradients_of(weights: dict[str, np.ndarray], *batch: np.ndarray) -> dict[str, np.ndarray]:
    """Central differences."""
    found = {}
    for path, weight in weights.items():
        found[path] = np.zeros_like(weight)
        for index in np.ndindex(weight.shape):
            moved = np.zeros_like(weight)
            moved[index] = 1e-5
            more, less = (loss_of(weights | {path: weight + sign * moved}, *batch) for sign in (1, -1))
            found[path][index] = (more - less) / 2e-5
    return found


def test_an_inspected_step_says_what_numpy_computes():
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH, SIDE, SIDE, CHANNELS))
    labels = random.integers(CLASSES, size=BATCH)
    model = tiny_network()
    for weight in model.trainable_weights:
        weight.assign(weight.numpy() + random.normal(size=weight.shape) * 0.3)
    weights = {weight.path: weight.numpy() for weight in model.trainable_weights}
    fields = {"weight_decay": DECAY, "weight_decay_mode": "l2", "gradient_clip_norm": CLIP, "momentum": 0.9}
    observer = StepObserver(model, BATCH)
    train_step = make_train_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, Config.from_flat(fields).optimizer),
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        observer=observer,
    )
    compiled = tf.function(lambda *batch: (train_step(*batch), *observer.tensors))
    batch = (tf.constant(images), tf.constant(labels, tf.int32), tf.constant(RATE), tf.constant(0.0))
    metrics, tensors = compiled(*batch)
    found = read_observation(model, frozenset(), tensors)

    assert float(metrics[0]) == pytest.approx(loss_of(weights, images, labels))
    expected = outputs_of(weights, images)
    assert found.layers == list(expected)
    np.testing.assert_allclose(found.activation_mean, [x.mean() for x in expected.values()], atol=1e-9)
    np.testing.assert_allclose(found.activation_std, [x.std() for x in expected.values()], rtol=1e-6)
    assert found.zero_fraction == [np.mean(x == 0) for x in expected.values()]
    assert 0.2 < found.zero_fraction[2] < 0.8

    gradients = gradients_of(weights, images, labels)
    # Clipped, then with weight decay; the velocity is still zero.
    scale = CLIP / np.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values()))
    assert scale < 0.5
    for layer, norm, ratio in zip(found.layers, found.gradient_norm, found.update_ratio, strict=True):
        paths = [path for path in weights if path.startswith(f"{layer}/")]
        if not paths:
            assert (norm, ratio) == (None, None)
            continue
        gradient = np.concatenate([gradients[path].ravel() for path in paths])
        before = np.concatenate([weights[path].ravel() for path in paths])
        assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        change = RATE * (scale * gradient + DECAY * before)
        assert ratio == pytest.approx(np.linalg.norm(change) / np.linalg.norm(before), rel=1e-5)

    for layer, found_ones in zip(found.layers, found.gradient_quantiles, strict=True):
        paths = [path for path in weights if path.startswith(f"{layer}/")]
        if not paths:
            assert found_ones is None
            continue
        gradient = np.concatenate([gradients[path].ravel() for path in paths])
        assert found_ones == quantiles(np.histogram(gradient, EDGES)[0].astype(float))

    # The histograms are of the same values.
    for layer, values in expected.items():
        np.testing.assert_array_equal(found.activation_counts[layer], np.histogram(values, EDGES)[0])
    assert found.gradient_counts.keys() == weights.keys()
    assert found.weight_counts.keys() == {weight.path for weight in model.weights}
    for weight in model.weights:
        after = np.histogram(weight.numpy(), EDGES)[0]
        np.testing.assert_array_equal(found.weight_counts[weight.path], after)


def test_logits_that_a_network_flattens_at_its_end_are_the_loss_s():
    images = keras.Input((SIDE, SIDE, CHANNELS))
    model = keras.Model(images, keras.layers.Flatten()(keras.layers.Conv2D(CLASSES, SIDE)(images)))
    batch = np.random.default_rng(0).normal(size=(BATCH, SIDE, SIDE, CHANNELS)).astype(np.float32)
    logits = StepObserver(model, BATCH).network(model, None)(batch, training=True)
    np.testing.assert_array_equal(logits, model(batch))


def test_quantiles_are_those_of_the_values_to_the_width_of_a_bucket():
    random = np.random.default_rng(0)
    for values in (
        random.normal(size=5000) * 0.02 + 0.1,
        np.maximum(random.normal(size=5000), 0),
        -np.ones(3),
    ):
        found = quantiles(np.histogram(values, EDGES)[0].astype(float))
        width = 2**0.25 - 1
        for value, expected in zip(found, np.quantile(values, LEVELS), strict=True):
            assert value == pytest.approx(expected, rel=width, abs=1e-3)
        assert found == sorted(found)
    assert quantiles(np.zeros(NUM_BUCKETS)) is None


def test_buckets_count_every_number_once_and_leave_out_the_others():
    random = np.random.default_rng(0)
    rows = [
        np.concatenate([random.normal(size=500), random.normal(size=500) * 1e-4, np.zeros(7)]),
        np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-12]),
        np.full(3, np.nan),
    ]
    index = np.repeat(np.arange(3, dtype=np.int32), [len(row) for row in rows])
    counts = bucket_counts(tf.constant(np.concatenate(rows), tf.float32), index).numpy()
    assert counts.shape == (3, NUM_BUCKETS)
    np.testing.assert_array_equal(counts[0], np.histogram(rows[0].astype(np.float32), EDGES)[0])
    assert counts[1].sum() == 3  # the two that are too large in the outermost buckets
    assert counts[1][[0, NUM_BUCKETS // 2, -1]].tolist() == [1, 1, 1]
    assert evenly_spaced(counts[2]) is None
    left, right, shown = evenly_spaced(counts[0]).T
    assert shown.sum() == pytest.approx(len(rows[0]))
    np.testing.assert_array_equal(left[1:], right[:-1])
    # Four buckets for each power of two: an edge is at most a fifth too far out.
    assert 1.0 <= left[0] / rows[0].min() < 1.2 and 1.0 <= right[-1] / rows[0].max() < 1.2


def test_a_large_layer_is_sampled_from_every_example_and_channel():
    model = build_model(
        Config.from_flat({"num_layers": 8}).model, num_classes=CLASSES, image_shape=(16, 16, 3)
    )
    observer = StepObserver(model, global_batch_size=512)
    images = np.random.default_rng(0).normal(size=(512, 16, 16, 3)).astype(np.float32)
    logits = observer.network(model, None)(tf.constant(images), training=False)
    sums = observer.activations().numpy()
    np.testing.assert_array_equal(logits, model(images, training=False))
    number = dict(zip(observed_layers(model), sums, strict=True))
    assert number["stem_conv1"][0] == 512 * 16 * 16 * 16
    assert 0.9 * SAMPLE_SIZE < number["stem_conv1"][4:].sum() <= SAMPLE_SIZE
    assert number["logits"][4:].sum() == 512 * CLASSES


def test_the_weights_of_a_model_within_the_network_are_those_of_its_layer():
    inner = keras.Sequential(
        [keras.layers.Conv2D(4, 1, name="logits"), keras.layers.Conv2D(2, 1)], name="inner"
    )
    images = keras.Input((SIDE, SIDE, CHANNELS))
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(inner(images))
    model = keras.Model(images, keras.layers.Dense(CLASSES, name="logits")(pooled))
    observer = StepObserver(model, BATCH)
    random = np.random.default_rng(0)
    pixels = tf.constant(random.normal(size=(BATCH, SIDE, SIDE, CHANNELS)).astype(np.float32))
    labels = tf.constant(random.integers(CLASSES, size=BATCH), tf.int32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(pixels)))
    *gradients, kernel, bias = tape.gradient(loss, model.trainable_weights)
    optimizer = SGD(model, Config.from_flat({"weight_decay": 0.0}).optimizer)
    train_step = make_train_step(
        tf.distribute.get_strategy(),
        model,
        optimizer,
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        observer=observer,
    )
    scalars = tf.constant(RATE), tf.constant(0.0)
    _, tensors = tf.function(lambda *batch: (train_step(*batch), *observer.tensors))(pixels, labels, *scalars)
    found = read_observation(model, frozenset(), tensors)
    norms = [float(tf.linalg.global_norm(part)) for part in (gradients, [kernel, bias])]
    assert found.layers == ["inner", "pool", "logits"]
    assert found.gradient_norm == [pytest.approx(norms[0], 1e-5), None, pytest.approx(norms[1], 1e-5)]
    assert [one is None for one in found.weight_quantiles] == [False, True, False]


def session_of(**fields: object):
    manifest = SimpleNamespace(
        num_classes=CLASSES,
        image_shape=(16, 16, 3),
        count=lambda split: 100,
        multi_label=False,
        target_mean=None,
    )
    values = {"train_batch_size": BATCH, "inspect_every_steps": 2, **fields}
    config = Config.from_flat(values)
    config, devices, data_format = on_one_device(config, num_gpus=0)
    return Network(config, manifest, devices, data_format)


@pytest.mark.long
def test_layers_that_are_not_trained_have_no_gradient_until_they_thaw_and_images_may_grow():
    session = session_of(
        num_layers=8,
        train_steps=8,
        freeze="stem,stage1",
        unfreeze_every_steps=2,
        progressive_resizing="8:0.5",
    )
    random = np.random.default_rng(0)
    images = tf.constant(random.normal(size=(BATCH, 16, 16, 3)).astype(np.float32))
    labels = tf.constant(random.integers(CLASSES, size=BATCH), tf.int32)
    untrained, sizes = [], []
    for step_index in (1, 3, 5, 7):
        scalars = (tf.constant(0.1), tf.constant(0.0))
        _, _, tensors = session.train_step_at(step_index)(images, labels, *scalars)
        found = session.observation(step_index, tensors)
        trained = {path.split("/")[0] for path in found.gradient_counts}
        for figures in (found.gradient_norm, found.update_ratio):
            known = zip(found.layers, figures, strict=True)
            assert {layer for layer, figure in known if figure is not None} == trained
        untrained.append({layer.split("_")[0] for layer in set(found.layers) - trained if "conv" in layer})
        sizes.append(tensors["activations"][0, 0] / BATCH / 16)
    assert untrained == [{"stem", "stage1"}, {"stem"}, set(), set()]
    assert sizes == [8 * 8, 8 * 8, 16 * 16, 16 * 16]


def test_nothing_is_inspected_unless_it_is_asked_for():
    session = session_of(inspect_every_steps=0, model="tutorial_cnn")
    assert session.train_step_at(0) is session.train_step_at(1) is session.train_step
    inspected = session_of(inspect_every_steps=1, model="tutorial_cnn")
    assert inspected.train_step_at(0) is inspected.train_step_at(1) is not inspected.train_step
