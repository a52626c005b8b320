"""Every architecture in Keras's own layers: the same answers, read where there is no labkit."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from labkit.architectures import ARCHITECTURES, parse_model_name
from labkit.config import ModelConfig
from labkit.data.augment import standardize
from labkit.export import predict
from labkit.export.check import TOLERANCE
from labkit.export.formats import FORMATS
from labkit.export.standard import (
    PROBE_TOLERANCE,
    StandardToolbox,
    copy_weights,
    foreign_objects,
    standard_model,
)
from labkit.models.registry import build_model
from labkit.models.toolbox import Toolbox

PIXELS = np.random.default_rng(3).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
# The smallest of each kind.
CASES = [
    "resnet8",
    "resnet8-v2",
    "resnet11-bottleneck",
    "resnet11-v2-bottleneck",
    "se_resnet8",
    "wide_resnet10_2",
    "vgg11",
    "tutorial_cnn",
    "fast_0.25",
    "mobilenetv2",
]
# What the other formats might not have: zero channels, local response normalization, GELU.
IN_EVERY_FORMAT = ["resnet8-v2", "tutorial_cnn", "fast_0.25"]
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
    """labkit's network with weights and statistics that all matter."""
    model = build_model(config, num_classes=manifest.num_classes, image_shape=manifest.image_shape)
    random = np.random.default_rng(1)
    for layer in model.layers:
        for weight in layer.weights:
            if weight.name == "moving_variance" or (weight.name == "gamma" and layer.scale):
                weight.assign(random.uniform(0.5, 1.5, weight.shape))
            elif weight.name in ("beta", "bias", "moving_mean"):
                weight.assign(random.uniform(-0.3, 0.3, weight.shape))
    return model


def exported(name: str, manifest, **fields) -> keras.Model:
    """Return the network with random weights; ``fields``: of the run, whose weights come in float32."""
    return standard_model(config_of(name, **fields), trained(config_of(name), manifest), manifest)


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


@dataclasses.dataclass
class Written:
    """labkit's logits by case; files by case and format; why a path couldn't be read; a file of labkit's."""

    expected: dict[str, np.ndarray]
    files: dict[tuple[str, str], Path]
    failures: dict[str, str]
    by_labkit: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory, shapes) -> Written:
    """Write all files, and read them in one process without labkit."""
    folder = tmp_path_factory.mktemp("exported")
    expected, files = {}, {}
    for name in CASES:
        model = trained(config_of(name), shapes)
        expected[name] = np.asarray(model(standardize(PIXELS, shapes)))
        standard = standard_model(config_of(name), model, shapes)
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
    assert {config_of(name).model for name in CASES} == ARCHITECTURES.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "format"), FILES)
def test_files_give_the_networks_logits_without_labkit(written, name, format):
    path = written.files[name, format]
    assert str(path) not in written.failures
    assert relative_error(np.load(f"{path}.npy"), written.expected[name]) < TOLERANCE


@pytest.mark.slow
def test_what_labkit_itself_saves_needs_labkit(written):
    assert "import" not in written.failures
    assert "BatchNormalization" in written.failures[str(written.by_labkit)]


def test_standardized_images_and_probabilities(shapes):
    config = config_of("resnet8")
    model = trained(config, shapes)
    logits = np.asarray(model(standardize(PIXELS, shapes)))
    found = standard_model(config, model, shapes, standardized_input=True)(standardize(PIXELS, shapes))
    assert relative_error(found, logits) < TOLERANCE
    chances = standard_model(config, model, shapes, probabilities=True)(PIXELS)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chances, expected, atol=1e-6)
    each = standard_model(config, model, shapes, probabilities=True, loss="sigmoid")(PIXELS)
    np.testing.assert_allclose(each, 1 / (1 + np.exp(-logits)), atol=1e-6)


def test_the_first_layer_standardizes_as_the_input_pipeline_does(shapes):
    model = exported("resnet8", shapes)
    expected = standardize(PIXELS, shapes).numpy()
    for pixels in (PIXELS, PIXELS.astype(np.float32)):
        np.testing.assert_allclose(model.get_layer("standardize")(pixels), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", [{"precision": "float64"}, {"precision": "mixed_bfloat16"}])
def test_the_exported_network_is_float32_whatever_the_run_was(fields, shapes):
    found = exported("fast_0.25", shapes, **fields)
    assert {layer.compute_dtype for layer in found.layers} == {"float32"}
    assert {str(weight.dtype) for weight in found.weights} == {"float32"}


def test_a_layer_that_keras_does_not_know_is_refused(monkeypatch, shapes):
    monkeypatch.setattr(StandardToolbox, "norm_layer", Toolbox.norm_layer)
    with pytest.raises(RuntimeError, match="plain Keras knows no .*BatchNormalization"):
        exported("resnet8", shapes)


def test_an_initializer_that_keras_does_not_know_is_seen(shapes):
    serialized = keras.saving.serialize_keras_object(trained(config_of("fast_0.25"), shapes))
    found = " ".join(set(foreign_objects(serialized)))
    assert all(name in found for name in ("Dirac", "Whitening", "BatchNormalization"))


@pytest.mark.parametrize("name", ["resnet8-v2", "fast_0.25", "tutorial_cnn"])
def test_where_float32_leaves_a_doubt_float64_decides(name, monkeypatch, shapes):
    monkeypatch.setitem(PROBE_TOLERANCE, "float32", 0.0)
    config, model = config_of(name), trained(config_of(name), shapes)
    with_pixels = standard_model(config, model, shapes, probabilities=True)
    assert with_pixels.dtype == "float32"
    standard_model(config, model, shapes, standardized_input=True)
    monkeypatch.setitem(PROBE_TOLERANCE, "float64", -1.0)
    with pytest.raises(RuntimeError, match="answers otherwise"):
        standard_model(config, model, shapes)


def test_a_network_that_answers_otherwise_is_refused(monkeypatch, shapes):
    def other_pool(self, x, size):
        return keras.layers.MaxPooling2D(size, padding="same")(x)

    monkeypatch.setattr(StandardToolbox, "average_pool", other_pool)
    with pytest.raises(RuntimeError, match="answers otherwise"):
        exported("resnet8", shapes)


def _network(*layers) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([keras.layers.Dense(3), keras.layers.Dense(3)], [keras.layers.Dense(3)], "2 layers with weights, 1"),
        ([keras.layers.Dense(3)], [keras.layers.Dense(2)], "no weights for .*kernel"),
        ([keras.layers.Dense(3, use_bias=False)], [keras.layers.Dense(3)], "no weights for .*bias"),
        ([keras.layers.Dense(3)], [keras.layers.Dense(3, use_bias=False)], "no place for bias"),
    ],
)
def test_weights_that_find_no_counterpart_are_refused(ours, theirs, message):
    with pytest.raises(RuntimeError, match=message):
        copy_weights(_network(*ours), _network(*theirs))


def test_a_factor_is_left_out_only_where_it_is_one():
    source = _network(keras.layers.BatchNormalization())
    copy_weights(source, _network(keras.layers.BatchNormalization(scale=False)))
    source.layers[0].gamma.assign([1, 1, 1, 2])
    with pytest.raises(RuntimeError, match="no place for gamma"):
        copy_weights(source, _network(keras.layers.BatchNormalization(scale=False)))
