"""Frozen layers stay as they are, to the bit, whatever happens to the others; thawing is a schedule."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config, ModelConfig, TransferConfig
from labkit.errors import InputError
from labkit.models.freezing import Freezing, layers_with_weights, stages
from labkit.models.layers import BatchNormalization, recorded_batch_statistics
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from tests.steps import compiled_step

BATCH, STEPS = 8, 3


def build(**fields):
    return build_model(ModelConfig(num_layers=8, **fields), num_classes=3, image_shape=(8, 8, 3), seed=1)


def trained(model, frozen, **optimizer_fields):
    """Train a few steps with everything that could touch a weight; return the velocities."""
    config = Config.from_flat({"weight_decay": 0.1} | optimizer_fields)
    optimizer = SGD(model, config.optimizer)
    step = compiled_step(
        tf.distribute.get_strategy(),
        model,
        optimizer,
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        frozen=frozen,
    )
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        images = tf.constant(random.normal(size=(BATCH, 8, 8, 3)), tf.float32)
        step(images, tf.range(BATCH) % 3, tf.constant(0.1), tf.constant(0.0))
    return [velocity.numpy() for velocity in optimizer.velocities]


@pytest.mark.parametrize(
    ("patterns", "precision", "decay_mode"),
    [("stem,stage1,stage2", "float32", "l2"), ("stage*_norm*", "float64", "decoupled")],
)
def test_frozen_layers_are_bit_equal_and_the_others_move(patterns, precision, decay_mode):
    model = build(precision=precision)
    frozen = Freezing(model, TransferConfig(freeze=patterns)).at(0)
    names = {layer.name: layer for layer in layers_with_weights(model)}
    assert frozen < names.keys() and len(frozen) >= 6
    for layer in names.values():  # statistics that a batch's would change
        if isinstance(layer, BatchNormalization):
            layer.moving_mean.assign(layer.moving_mean + 0.25)
    before = {name: [weight.numpy() for weight in layer.weights] for name, layer in names.items()}
    velocities = trained(model, frozen, weight_decay_mode=decay_mode)
    for name, layer in names.items():
        for weight, old in zip(layer.weights, before[name], strict=True):
            assert (weight.numpy().tobytes() == old.tobytes()) == (name in frozen), weight.path
    held = {id(weight) for name in frozen for weight in names[name].weights}
    for weight, velocity in zip(model.trainable_variables, velocities, strict=True):
        assert velocity.any() == (id(weight) not in held)


def gradient_through(layer, images):
    """Return the gradient of the images through a frozen layer, and the operations that compute it."""

    @tf.function(autograph=False)
    def gradient(images):
        with tf.GradientTape() as tape, recorded_batch_statistics([layer]):
            tape.watch(images)
            loss = tf.reduce_sum(tf.sin(layer(images, training=True)))
        return tape.gradient(loss, images)

    graph = gradient.get_concrete_function(images).graph
    return gradient(images).numpy(), {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_deterministic_training_on_a_gpu_has_a_gradient_through_frozen_normalization(
    data_format, monkeypatch
):
    # TensorFlow says there: "A deterministic GPU implementation of fused batch-norm backprop, when training
    # is disabled, is not currently available."
    layer, images = BatchNormalization(data_format), tf.random.stateless_normal((4, 5, 6, 7), (1, 2))
    layer.build(images.shape)
    for weight in layer.weights:
        weight.assign(tf.random.stateless_uniform(weight.shape, (3, 4), 0.5, 2))
    expected, kernels = gradient_through(layer, images)
    assert "FusedBatchNormGradV3" in kernels
    tf.config.experimental.enable_op_determinism()
    assert "FusedBatchNormGradV3" in gradient_through(layer, images)[1], "a CPU has that kernel"
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [f"/device:{kind}:0"])
    found, kernels = gradient_through(layer, images)
    assert "FusedBatchNormGradV3" not in kernels
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_frozen_normalization_uses_the_statistics_that_it_has():
    frozen, plain = build(), build()
    norms = [layer.name for layer in frozen.layers if isinstance(layer, BatchNormalization)]
    for model in (frozen, plain):
        for layer in model.layers:
            if layer.name in norms:
                layer.moving_variance.assign(layer.moving_variance * 3)
    everything_but = frozenset(layer.name for layer in layers_with_weights(frozen)) - {"logits"}
    trained(frozen, everything_but, weight_decay=0.0)

    # What is left is a linear model over features in inference: the same by hand.
    features = tf.keras.Model(plain.inputs, plain.get_layer("logits").input)
    kernel, bias = (weight.numpy().astype(np.float64) for weight in plain.get_layer("logits").weights)
    velocity = [0.0, 0.0]
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        inputs = features(
            tf.constant(random.normal(size=(BATCH, 8, 8, 3)), tf.float32), training=False
        ).numpy()
        logits = inputs @ kernel + bias
        share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        share -= np.eye(3)[np.arange(BATCH) % 3]
        gradients = [inputs.T @ share / BATCH, share.mean(axis=0)]
        velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
        kernel, bias = (w - 0.1 * v for w, v in zip((kernel, bias), velocity, strict=True))
    found = frozen.get_layer("logits").weights
    np.testing.assert_allclose(found[0], kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], bias, rtol=1e-4, atol=1e-5)


def test_stages_thaw_from_the_head_downwards_by_the_step_alone():
    model = build()
    freezing = Freezing(model, TransferConfig(freeze="stem,stage*", unfreeze_every_steps=10))
    assert [stage for stage, _ in freezing.stages] == ["stem", "stage1", "stage2", "stage3"]
    whole = {stage: {layer.name for layer in layers} for stage, layers in stages(model).items()}
    assert freezing.at(0) == freezing.at(9) == set().union(*(whole[name] for name in list(whole)[:4]))
    assert freezing.at(10) == whole["stem"] | whole["stage1"] | whole["stage2"]
    assert freezing.at(39) == whole["stem"]
    assert freezing.at(40) == freezing.at(10**6) == frozenset()
    thaws = {number: freezing.thaws_at(number) for number in range(100) if freezing.thaws_at(number)}
    assert thaws == {10: "stage3", 20: "stage2", 30: "stage1", 40: "stem"}
    assert freezing.describe(25) == (
        "frozen: stem, stage1, stage2, stage3; thawing: stage3 after step 10, stage2 after step 20"
    )


def test_a_pattern_for_layers_freezes_no_others_of_their_stage():
    freezing = Freezing(build(), TransferConfig(freeze="stage2_*_norm*, stem_conv1"))
    assert freezing.at(0) == {"stem_conv1", "stage2_block1_norm1", "stage2_block1_norm2"}
    assert freezing.describe(10) == "frozen: stem_conv1, stage2_block1_norm1, stage2_block1_norm2"
    assert not Freezing(build(), TransferConfig())


def test_a_layers_own_name_freezes_it_alone():
    """In a network of one's own, Keras's names begin alike: conv2d, conv2d_1."""
    x = images = keras.Input((8, 8, 3))
    for name in ("conv2d", "conv2d_1", "conv2d_2"):
        x = keras.layers.Conv2D(2, 3, padding="same", name=name)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(3, name="logits")(x))
    for pattern in ("conv2d", "conv2d_1"):
        freezing = Freezing(model, TransferConfig(freeze=pattern))
        assert freezing.at(0) == {pattern} and freezing.describe(10) == f"frozen: {pattern}"
    assert Freezing(model, TransferConfig(freeze="conv2d*")).describe(10) == "frozen: conv2d"


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ("stage4", ["'stage4'", "stem, stage1, stage2, stage3, logits", "stage2_block1"]),
        ("stem,conv2d*", ["'conv2d*'", "stem, stage1"]),
        ("*", ["'*'", "leaves nothing"]),
    ],
)
def test_patterns_that_fit_nothing_or_everything_are_refused_in_one_line(patterns, words):
    with pytest.raises(InputError) as refusal:
        Freezing(build(), TransferConfig(freeze=patterns))
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"unfreeze_every_steps": 5}, "--freeze"),
        ({"freeze": "stem,,stage1"}, "none empty"),
        ({"start_from": ""}, "--start-from is ''; allowed: a path on this machine"),
    ],
)
def test_combinations_without_a_meaning_are_refused(fields, word):
    with pytest.raises(InputError, match=word):
        TransferConfig(**fields)
