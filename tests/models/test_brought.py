"""Networks of one's own: what becomes labkit's in them, what stays, and what is refused in one line."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models import brought
from labkit.models.brought import plain_model
from labkit.models.layers import (
    BatchNormalization,
    Dropout,
    dropout_draws,
    norms_of,
    recorded_batch_statistics,
)
from labkit.models.registry import build_model
from labkit.parts.code import allow

OWN = Path(__file__).parents[1] / "own_nets.py"
TRAINED = ("functional", "sequential", "subclassed", "mlp", "application")
IMAGES = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def consent():
    allow({str(OWN): OWN.read_bytes()})


def named(name: str, **fields) -> ModelConfig:
    return ModelConfig(model=f"{OWN}:{name}", **fields)


def build(name: str, seed: int = 0, **fields) -> keras.Model:
    return build_model(named(name, **fields), num_classes=10, image_shape=(32, 32, 3), seed=seed)


@pytest.mark.parametrize("name", TRAINED)
def test_predictions_are_those_of_the_model_as_it_was_written(name):
    ours, plain = build(name), plain_model(named(name), 10, (32, 32, 3))
    np.testing.assert_array_equal(
        plain.get_weights()[0], ours.get_weights()[0], "the seed decides the weights"
    )
    np.testing.assert_allclose(ours(IMAGES), plain(IMAGES), rtol=1e-5, atol=1e-5)
    assert ours.output.dtype == "float32" and ours.output.shape == (None, 10)
    if name in ("functional", "application"):  # layers keep their names, also in another copy of the network
        again = [layer.name for layer in build(name).layers]
        assert [layer.name for layer in ours.layers] == again
    assert not any(type(layer) is keras.layers.Dropout for layer in ours._flatten_layers())


@pytest.mark.parametrize("name", ["functional", "sequential", "subclassed"])
def test_a_batch_is_normalized_as_keras_does(name):
    ours, plain = build(name), plain_model(named(name), 10, (32, 32, 3))
    for model in (ours, plain):
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Dropout | Dropout):
                layer.rate = 0.0
    with recorded_batch_statistics() as recorded:
        logits = ours(IMAGES, training=True)
    np.testing.assert_allclose(logits, plain(IMAGES, training=True), rtol=2e-4, atol=2e-4)
    assert {id(layer) for layer, _, _ in recorded} == {id(layer) for layer in norms_of(ours).values()}
    momentum = {layer.decay for layer in norms_of(ours).values()}
    assert momentum == ({0.9, 0.99} if name == "sequential" else {0.99})


@pytest.mark.parametrize("begins", [True, False])
def test_a_sequential_model_may_begin_with_its_input(begins):
    model = build("chain", model_arguments=f"begins={begins}")
    assert [type(layer).__name__ for layer in model.layers] == ["InputLayer", "Flatten", "Dense"]
    assert model(IMAGES).shape == (8, 10)


def test_a_model_of_known_layers_is_not_traced(monkeypatch):
    """Tracing took half of the time that a ResNet-20 of one's own needs to be checked."""
    model = build("sequential")
    monkeypatch.setattr(tf, "function", lambda *arguments, **options: pytest.fail("traced"))
    assert brought._operations(model, training=True) == []


def test_a_sigmoid_inside_is_no_end():
    assert build("gated")(IMAGES).shape == (8, 10)


def test_normalizations_of_one_name_have_names_of_their_own():
    assert list(norms_of(build("subclassed"))) == ["norm", "norm#2"]
    assert all(isinstance(layer, BatchNormalization) for layer in norms_of(build("application")).values())


def test_halves_of_a_batch_drop_what_the_whole_drops():
    model = build("functional")
    with dropout_draws(3, 0, 8), recorded_batch_statistics(norms_of(model).values()):
        whole = model(IMAGES, training=True).numpy()
    halves = []
    for first in (0, 4):
        with dropout_draws(3, first, 8), recorded_batch_statistics(norms_of(model).values()):
            halves.append(model(IMAGES[first : first + 4], training=True).numpy())
    np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-5, atol=1e-6)
    with dropout_draws(4, 0, 8), recorded_batch_statistics(norms_of(model).values()):
        assert np.abs(model(IMAGES, training=True) - whole).max() > 1e-3, "another step drops others"


def test_arguments_seed_and_precision_reach_the_function():
    small = build("mlp", model_arguments="units=4,activation=gelu", precision="mixed_bfloat16")
    assert [tuple(weight.shape) for weight in small.weights] == [(3072, 4), (4,), (4, 10), (10,)]
    assert small.layers[2].compute_dtype == "bfloat16" and small.output.dtype == "float32"
    assert small.layers[2].activation is keras.activations.gelu
    assert np.abs(build("mlp", seed=1).get_weights()[0] - build("mlp").get_weights()[0]).max() > 0.01
    assert build("mlp", precision="float64")(IMAGES).dtype == "float64"


def test_what_the_process_had_set_stays():
    keras.config.set_image_data_format("channels_first")
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("float16")
        before = keras.layers.Dense(1).name
        model = build("functional")
        assert model.layers[1].compute_dtype == "float32" and model.layers[1].data_format == "channels_last"
        assert keras.config.dtype_policy().name == "float16"
        assert keras.config.image_data_format() == "channels_first"
        assert keras.layers.Dense(1).name != before
    finally:
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy(policy)


REFUSED = {
    "missing": "has no 'missing'; it has: functional",
    "sequentail": "did you mean 'sequential'",
    "raises": "failed for images of (32, 32, 3): ValueError: no such width",
    "quits": "failed for images of (32, 32, 3): SystemExit: 3",
    "nothing": "returned nothing; allowed: a Keras model",
    "ends_in_softmax": "as a softmax does, and labkit's losses take logits",
    "softmax_layer": "as a softmax does, and labkit's losses take logits",
    "regularized": "adds losses of its own (1), such as a regularizer's",
    "penalized": "adds losses of its own (1)",
    "saturated": "as a softmax does, and labkit's losses take logits",
    "constrained": "has a constraint on 'dense/kernel', which labkit doesn't apply",
    "rescaled": "prepares pixels in 'rescaling', and labkit gives it standardized images",
    "divides": "divides its images by 255 or 127.5",
    "divides_in_its_call": "divides its images by 255 or 127.5",
    "prepares_as_resnet": "or subtracts the means of ImageNet, as of pixels, and labkit gives it",
    "centres_a_batch": "makes what it says of an image depend on the others of its batch",
    "drops_rarely": "has numbers that it draws by itself",
    "misspells": "AttributeError: 'Misspells' object has no attribute 'dence'",
    "trains_itself": "has a train_step, that of TrainsItself, which labkit doesn't call",
    "loses_itself": "has a compute_loss, that of LosesItself, which labkit doesn't call",
    "two_inputs": "has 2 inputs, and labkit gives it one, the images",
    "two_outputs": "has 2 outputs, and labkit trains one",
    "too_few_outputs": "gives outputs of shape (None, 9); allowed: a logit for each class, (None, 10)",
    "for_other_images": "can't take images of (32, 32, 3), but those of (28, 28, 1); build it for",
    "for_larger_images": "can't take images of (32, 32, 3), but those of (224, 224, 3); build it for",
    "gives_nan": "gives NaN or infinite numbers for standardized images",
    "draws_by_keras": "numbers that it draws by itself",
    "draws_by_numpy": "numbers that it draws by itself",
    "draws_by_itself": "seed_generator_state', which each call in training changes",
    "counts": "calls', which each call in training changes",
    "normalizes_twice": "called 2 times",
    "normalizes_rows": "normalizes axis 2 of 4",
    "number": "is 3; allowed: a function (input_shape, num_classes)",
}


@pytest.mark.parametrize("name", ["the_same", "over_the_same"])
def test_layers_that_were_trained_before_are_not_taken_again(name):
    build(name)
    with pytest.raises(InputError, match=f"{name} returned the layer '.*' again; make new ones in each call"):
        build(name)


def test_layers_without_weights_may_come_again():
    for _ in range(2):
        assert build("over_no_weights")(IMAGES).shape == (8, 10)


def test_a_decorated_function_is_called_as_it_can_be():
    assert build("decorated")(IMAGES).shape == (8, 10)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_says_so_in_one_line(name):
    with pytest.raises(InputError) as refused:
        build(name)
    line = str(refused.value)
    assert REFUSED[name] in line and str(OWN) in line and "\n" not in line


@pytest.mark.parametrize("name", ["mlp", "sequential", "subclassed"])
def test_too_many_weights_are_refused_before_they_take_memory(name, monkeypatch):
    made, initialize = [], keras.initializers.GlorotUniform.__call__

    def counted(self, shape, dtype=None):
        made.append(np.prod(shape) if tf.executing_eagerly() else 0)  # a graph has no values yet
        return initialize(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.GlorotUniform, "__call__", counted, raising=False)
    monkeypatch.setattr(brought, "MOST_WEIGHTS", 500)
    with pytest.raises(InputError, match=f":{name} has more than 500 weights") as refused:
        build(name)
    assert max(made, default=0) <= 500 and "\n" not in str(refused.value)


@pytest.mark.parametrize("outputs", [1, 2])
def test_logits_that_lie_between_0_and_1_by_chance_are_no_sigmoid(outputs):
    for seed in range(10):
        found = build_model(named("functional"), num_classes=outputs, image_shape=(32, 32, 3), seed=seed)
        logits = plain_model(named("functional"), outputs, (32, 32, 3), seed)(IMAGES)
        np.testing.assert_allclose(found(IMAGES), logits, rtol=1e-5, atol=1e-5, err_msg="weights stay")


def test_a_damaged_keras_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "net.keras"
    path.write_bytes(b"PK no archive")
    allow({str(path): path.read_bytes()})
    with pytest.raises(InputError, match=r"net\.keras is no \.keras file"):
        build_model(ModelConfig(model=str(path)), num_classes=10, image_shape=(32, 32, 3))


def test_a_keras_file_that_only_this_process_could_load_is_refused(tmp_path):
    """A registered class is known here alone; the run would train, and nobody could evaluate it."""

    @keras.saving.register_keras_serializable("tests")
    class Same(keras.layers.Layer):
        def call(self, x):
            return x

    path = tmp_path / "net.keras"
    keras.Sequential([keras.Input((32, 32, 3)), Same(), keras.layers.Flatten(), keras.layers.Dense(10)]).save(
        path
    )
    assert keras.saving.load_model(path, compile=False)
    allow({str(path): path.read_bytes()})
    with pytest.raises(InputError, match="give the function that builds the model") as refused:
        build_model(ModelConfig(model=str(path)), num_classes=10, image_shape=(32, 32, 3))
    assert "\n" not in str(refused.value)
    assert keras.saving.get_registered_object("tests>Same") is Same


def test_a_keras_file_of_labkits_own_layers_can_be_loaded(tmp_path):
    path = tmp_path / "net.keras"
    given = {"num_classes": 10, "image_shape": (32, 32, 3)}
    own = build_model(ModelConfig(model="resnet", num_layers=8, dropout_rate=0.2), **given)
    own.save(path)
    allow({str(path): path.read_bytes()})
    again = build_model(ModelConfig(model=str(path)), **given)
    images = np.ones((2, 32, 32, 3), np.float32)
    np.testing.assert_allclose(again(images), own(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"model_arguments": "depth=3"},
            "takes (input_shape, num_classes, units=32, activation='relu'), but is",
        ),
        ({"dropout_rate": 0.5}, "--dropout-rate is 0.5"),
        ({"num_layers": 20}, "--num-layers is 20"),
        ({"batch_norm_epsilon": 0.1}, "--batch-norm-epsilon is 0.1"),
    ],
)
def test_other_flags_of_networks_are_refused(fields, said):
    with pytest.raises(InputError) as refused:
        build("mlp", **fields)
    assert said in str(refused.value)
