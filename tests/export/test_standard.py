"""Every architecture rebuilt from Keras's own layers gives the same outputs without labkit."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

from labkit.analysis.network import Classifier
from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES, parse_model_name
from labkit.data.network_input import standardize
from labkit.export import predict
from labkit.export.output import FORMATS
from labkit.export.standard import (
    PROBE_TOLERANCE,
    KerasLayerFactory,
    copy_weights,
    foreign_objects,
    standard_model,
)
from labkit.export.write import TOLERANCE
from labkit.models import patches
from labkit.models.layer_factory import LayerFactory
from labkit.models.registry import build_model
from labkit.training.losses import SIGMOID, SOFTMAX

pytestmark = pytest.mark.long

PIXELS = np.random.default_rng(3).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
# The smallest network of each kind.
CASES = [
    "resnet8",
    "resnet8-v2",
    "resnet11-bottleneck",
    "resnet11-v2-bottleneck",
    "se_resnet8",
    "wide_resnet10_2",
    "vgg11",
    "tutorial_cnn",
    "lenet",
    "alexnet",
    "vit",
    "convnext",
    "fast_0.25",
    "fast_residual_0.25",
    "imagenet_resnet18",
    "imagenet_se_resnet18",
    "imagenet_vgg11",
    "mobilenetv2",
    "mobilenetv3small",
    "convnexttiny",
]
# What the other formats might not have: zero channels, local response normalization, GELU, attention.
IN_EVERY_FORMAT = ["resnet8-v2", "tutorial_cnn", "fast_0.25", "vit", "convnext"]
FILES = [(name, "keras") for name in CASES] + [
    (name, format) for name in IN_EVERY_FORMAT for format in FORMATS if format != "keras"
]

READ_WITHOUT_LABKIT = """
import json, runpy, sys
program = runpy.run_path(sys.argv[1])
program["without_labkit"]()
import numpy as np
images, failures = np.load(sys.argv[2]), {}
for kind, path in json.load(sys.stdin):
    try:
        np.save(path + ".npy", np.asarray(program["READERS"][kind](path)(images)))
    except Exception as error:
        failures[path] = str(error)
try:
    import labkit.models.layers
    failures["import"] = "labkit was there"
except ImportError:
    pass
print(json.dumps(failures))
"""


def config_of(name: str, **fields) -> ModelConfig:
    own = {"activation": "gelu"} if name.startswith("fast") else {}
    return ModelConfig(**parse_model_name(name), **own, **fields)


def trained(config: ModelConfig, manifest) -> keras.Model:
    """Return labkit's network with random weights and statistics, so that each of them has an effect."""
    model = build_model(config, num_classes=manifest.num_classes, image_shape=manifest.image_shape)
    random = np.random.default_rng(1)
    for layer in model.layers:
        for weight in layer.weights:
            if weight.name == "moving_variance" or (weight.name == "gamma" and layer.scale):
                weight.assign(random.uniform(0.5, 1.5, weight.shape))
            elif weight.name in ("beta", "bias", "moving_mean"):
                weight.assign(random.uniform(-0.3, 0.3, weight.shape))
    return model


def network(model: keras.Model, manifest, loss=SOFTMAX) -> Classifier:
    return Classifier(model, manifest, loss, step=0)


def exported(name: str, manifest, **fields) -> keras.Model:
    """Return the exported network with random weights; ``fields``: further fields of the configuration."""
    return standard_model(config_of(name, **fields), network(trained(config_of(name), manifest), manifest))


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


@dataclasses.dataclass
class Written:
    """Exported files.

    ``expected``: labkit's logits by case; ``files``: paths by case and format; ``failures``: error messages
    by path; ``by_labkit``: a file that labkit itself saved.
    """

    expected: dict[str, np.ndarray]
    files: dict[tuple[str, str], Path]
    failures: dict[str, str]
    by_labkit: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory, shapes) -> Iterator[Written]:
    """Write all files, and read them in one process without labkit."""
    with pytest.MonkeyPatch.context() as patch:  # the same layers, but few: converting takes long
        patch.setattr(patches, "DEPTH", patches.BLOCKS)
        patch.setattr(patches, "DEPTHS", (1, 1, 1, 1))
        yield write_and_read(tmp_path_factory, shapes)


def write_and_read(tmp_path_factory, shapes) -> Written:
    folder = tmp_path_factory.mktemp("exported")
    expected, files = {}, {}
    for name in CASES:
        model = trained(config_of(name), shapes)
        expected[name] = np.asarray(model(standardize(PIXELS, shapes)))
        standard = standard_model(config_of(name), network(model, shapes))
        for format in [format for case, format in FILES if case == name]:
            files[name, format] = folder / (name + FORMATS[format].ending)
            FORMATS[format].write(standard, "logits", files[name, format])
        if name == "resnet8":
            model.save(folder / "labkit.keras")
    np.save(folder / "pixels.npy", PIXELS)
    jobs = [(format, str(path)) for (_, format), path in files.items()]
    jobs.append(("keras", str(folder / "labkit.keras")))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", READ_WITHOUT_LABKIT, predict.__file__, str(folder / "pixels.npy")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    failures = json.loads(ended.stdout.splitlines()[-1])
    return Written(expected, files, failures, folder / "labkit.keras")


def test_every_architecture_has_a_case():
    # Of imagenet_alexnet, which takes larger images only, the layers are in the cases.
    assert {config_of(name).model for name in CASES} == ARCHITECTURES.keys() - {"imagenet_alexnet"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format"), FILES)
def test_files_give_the_networks_logits_without_labkit(written, name, format):
    path = written.files[name, format]
    assert str(path) not in written.failures
    assert relative_error(np.load(f"{path}.npy"), written.expected[name]) < TOLERANCE


@pytest.mark.slow
def test_a_file_that_labkit_itself_saved_needs_labkit(written):
    assert "import" not in written.failures
    assert "Conv2D" in written.failures[str(written.by_labkit)]


def test_standardized_images_and_probabilities(shapes):
    config = config_of("resnet8")
    model = trained(config, shapes)
    logits = np.asarray(model(standardize(PIXELS, shapes)))
    found = standard_model(config, network(model, shapes), standardized_input=True)(
        standardize(PIXELS, shapes)
    )
    assert relative_error(found, logits) < TOLERANCE
    chances = standard_model(config, network(model, shapes), probabilities=True)(PIXELS)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chances, expected, atol=1e-6)
    each = standard_model(config, network(model, shapes, SIGMOID), probabilities=True)(PIXELS)
    np.testing.assert_allclose(each, 1 / (1 + np.exp(-logits)), atol=1e-6)


def test_the_first_layer_standardizes_like_the_input_pipeline(shapes):
    model = exported("resnet8", shapes)
    expected = standardize(PIXELS, shapes)
    for pixels in (PIXELS, PIXELS.astype(np.float32)):
        np.testing.assert_allclose(model.get_layer("standardize")(pixels), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", [{"precision": "float64"}, {"precision": "mixed_bfloat16"}])
def test_the_exported_network_is_float32_for_any_precision_of_the_run(fields, shapes):
    found = exported("fast_0.25", shapes, **fields)
    assert {layer.compute_dtype for layer in found.layers} == {"float32"}
    assert {str(weight.dtype) for weight in found.weights} == {"float32"}


def test_a_layer_that_keras_does_not_know_is_refused(monkeypatch, shapes):
    monkeypatch.setattr(KerasLayerFactory, "norm_layer", LayerFactory.norm_layer)
    with pytest.raises(RuntimeError, match="plain Keras has no .*BatchNormalization"):
        exported("resnet8", shapes)


def test_objects_that_keras_does_not_know_are_found(shapes):
    serialized = keras.saving.serialize_keras_object(trained(config_of("fast_0.25"), shapes))
    found = " ".join(set(foreign_objects(serialized)))
    assert all(name in found for name in ("Dirac", "Whitening", "BatchNormalization"))


@pytest.mark.parametrize("name", ["resnet8-v2", "fast_0.25", "tutorial_cnn"])
def test_differences_in_float32_are_checked_in_float64(name, monkeypatch, shapes):
    monkeypatch.setitem(PROBE_TOLERANCE, "float32", 0.0)
    config, model = config_of(name), trained(config_of(name), shapes)
    with_pixels = standard_model(config, network(model, shapes), probabilities=True)
    assert with_pixels.dtype == "float32"
    standard_model(config, network(model, shapes), standardized_input=True)
    monkeypatch.setitem(PROBE_TOLERANCE, "float64", -1.0)
    with pytest.raises(RuntimeError, match="gives other outputs"):
        standard_model(config, network(model, shapes))


def test_a_network_with_other_outputs_is_refused(monkeypatch, shapes):
    def other_pool(self, x, size):
        return keras.layers.MaxPooling2D(size, padding="same")(x)

    monkeypatch.setattr(KerasLayerFactory, "average_pool", other_pool)
    with pytest.raises(RuntimeError, match="gives other outputs"):
        exported("resnet8", shapes)


def _network(*layers) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (
            [keras.layers.Dense(3), keras.layers.Dense(3)],
            [keras.layers.Dense(3)],
            "2 layers with weights, but 1",
        ),
        ([keras.layers.Dense(3)], [keras.layers.Dense(2)], "no weights of shape .* for .*kernel"),
        (
            [keras.layers.Dense(3, use_bias=False)],
            [keras.layers.Dense(3)],
            "no weights of shape .* for .*bias",
        ),
        ([keras.layers.Dense(3)], [keras.layers.Dense(3, use_bias=False)], "no variable for bias"),
    ],
)
def test_weights_without_a_counterpart_are_refused(ours, theirs, message):
    with pytest.raises(RuntimeError, match=message):
        copy_weights(_network(*ours), _network(*theirs))


def test_gamma_is_left_out_only_if_it_is_one():
    source = _network(keras.layers.BatchNormalization())
    copy_weights(source, _network(keras.layers.BatchNormalization(scale=False)))
    source.layers[0].gamma.assign([1, 1, 1, 2])
    with pytest.raises(RuntimeError, match="no variable for gamma"):
        copy_weights(source, _network(keras.layers.BatchNormalization(scale=False)))
