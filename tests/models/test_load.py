"""Loaded weights equal the source's bit for bit, and the report names all others."""

import keras
import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models.initial_weights import InitialWeights, match, read_weights, weights_by_name
from labkit.models.registry import build_model
from labkit.models.weight_source import WeightSource, find_weight_source
from tests import own_nets

CONFIG = ModelConfig(num_layers=8)
SOURCE = WeightSource("keras")


def build(classes: int = 3, seed: int = 0, size: int = 8, **fields):
    config = ModelConfig(**({"num_layers": 8} | fields))
    return build_model(config, num_classes=classes, image_shape=(size, size, 3), seed=seed)


def values(model) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in weights_by_name(model).items()}


def source(model, classes=None) -> InitialWeights:
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.uniform(0.5, 1.5, weight.shape))
    return InitialWeights(SOURCE, values(model), classes=classes)


def test_all_fitting_weights_are_loaded_except_a_head_for_other_classes():
    weights, model = source(build(classes=3, seed=1), ("a", "b", "c")), build(classes=3, seed=2)
    before = values(model)
    transfer = match(weights, model, ("c", "d", "e"))  # as many, but others
    assert set(transfer.replaced) == {"logits/kernel", "logits/bias"}
    assert set(transfer.loaded) == before.keys() - set(transfer.replaced)
    assert not transfer.missing and not transfer.mismatched and not transfer.unused
    transfer.load(model)
    for name, value in values(model).items():
        expected = before[name] if name in transfer.replaced else weights.arrays[name]
        assert value.tobytes() == expected.tobytes(), name
    assert [line.split(":")[0] for line in transfer.lines()[1:]] == ["new, because the classes differ"]


@pytest.mark.parametrize("classes", [("a", "b", "c"), None])
def test_the_head_is_loaded_where_the_classes_are_the_same_or_unknown(classes):
    weights, model = source(build(), classes), build(seed=2)
    transfer = match(weights, model, ("a", "b", "c"))
    transfer.load(model)
    assert values(model).keys() == set(transfer.loaded)
    assert all(value.tobytes() == weights.arrays[name].tobytes() for name, value in values(model).items())


def test_without_a_layer_called_logits_the_last_one_is_the_head():
    model = own_nets.functional((32, 32, 3), 3)
    weights, last = source(model, ("a", "b", "c")), model.layers[-1].name
    assert set(match(weights, model, ("c", "d", "e")).replaced) == {f"{last}/kernel", f"{last}/bias"}
    assert not match(weights, model, ("a", "b", "c")).replaced


def test_other_shapes_and_other_layers_are_named():
    deeper = build(classes=5, num_layers=14)
    transfer = match(source(build(classes=3)), deeper, ("a",) * 5)
    assert transfer.mismatched == {"logits/kernel": ((64, 3), (64, 5)), "logits/bias": ((3,), (5,))}
    assert len(transfer.missing) == 30 and all("_block2_" in name for name in transfer.missing)
    back = match(source(build(classes=5, num_layers=14)), build(classes=5), ("a",) * 5)
    assert len(back.unused) == 30 and not back.missing
    text = "\n".join(transfer.lines())
    assert "37 weights" not in text and "35 of 67 weights loaded" in text
    assert "logits/kernel [64, 3], [64, 5] here" in text and "and 27 more" in text


def test_a_source_without_a_fitting_kernel_is_an_error():
    weights = InitialWeights(SOURCE, {"dense/kernel": np.zeros((2, 2), np.float32)})
    with pytest.raises(
        InputError, match=r"none of its kernels fits resnet8.*dense/kernel.*stem_conv1/kernel"
    ):
        match(weights, build(), ("a", "b", "c"))


def test_an_offset_without_its_kernel_is_not_loaded():
    weights = source(build(), ("a", "b", "c"))
    other = {name: array for name, array in weights.arrays.items() if name.startswith(("logits", "stem"))}
    other["logits/kernel"] = other["logits/kernel"][:-1]
    transfer = match(InitialWeights(SOURCE, other, classes=("a", "b", "c")), build(), ("a", "b", "c"))
    assert transfer.detached == ("logits/bias",)
    assert "logits/bias" not in transfer.loaded and "stem_conv1/kernel" in transfer.loaded
    assert "new, because the layer's kernel is new: logits/bias" in transfer.lines()
    del other["stem_conv1/kernel"]
    with pytest.raises(
        InputError, match="none of its kernels fits resnet8"
    ):  # as of a VGG of the same classes
        match(InitialWeights(SOURCE, other, classes=("a", "b", "c")), build(), ("a", "b", "c"))


def test_layers_of_one_name_are_refused_because_names_would_decide_between_them():
    def part(name):
        images = keras.Input((8, 8, 3))
        return keras.Model(images, keras.layers.Conv2D(4, 3, name="conv")(images), name=name)

    images = keras.Input((8, 8, 3))
    both = keras.layers.Add()([part("left")(images), part("right")(images)])
    with pytest.raises(InputError, match="has 2 layers called 'conv'"):
        weights_by_name(keras.Model(images, both))


def test_a_scale_that_is_never_trained_is_not_asked_for():
    weights = weights_by_name(build(model="fast", num_layers=None, width_factor=0.25, size=32))
    assert not any(name.endswith("gamma") for name in weights)
    assert {"stem_whitening1/kernel", "stage3_norm2/moving_variance"} <= weights.keys()


def test_any_keras_file_is_a_source(tmp_path):
    theirs = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(16, 3, use_bias=False, name="stem_conv1")]
    )
    theirs.save(tmp_path / "theirs.keras")
    found = find_weight_source(str(tmp_path / "theirs.keras"), CONFIG)
    weights = read_weights(found, CONFIG, (8, 8, 3))
    assert weights.classes is None and weights.step is None
    model = build()
    transfer = match(weights, model, ("a", "b", "c"))
    assert transfer.loaded == ("stem_conv1/kernel",)
    transfer.load(model)
    np.testing.assert_array_equal(model.get_layer("stem_conv1").kernel, theirs.layers[0].kernel)


def test_the_digest_depends_on_the_values():
    first, second = source(build()), source(build())
    assert first.digest == second.digest
    second.arrays["logits/bias"][0] += 1
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("start_from", "word"),
    [
        ("{here}/none.keras", "no such file"),
        ("{here}", "no run at"),
        ("imagenet", "--model imagenet_resnet --num-layers 50 or 101 or 152, --model imagenet_vgg"),
        ("{here}/run", "no checkpoint yet"),
    ],
)
def test_a_missing_source_is_refused_before_any_work(start_from, word, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=word):
        find_weight_source(start_from.format(here=tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("broken.keras", "is not a .keras file"), ("broken.h5", "can't be read as a Keras model")],
)
def test_a_damaged_file_is_refused_in_one_line(name, reason, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=reason) as refusal:
        read_weights(WeightSource("keras", path), CONFIG, (8, 8, 3))
    assert "\n" not in str(refusal.value)
