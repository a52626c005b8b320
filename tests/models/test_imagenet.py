"""ImageNet's weights: downloaded once into Keras's cache, loaded by name; one clear line where they can't be.

No test goes online: a server on this machine answers in place of the publisher's.
"""

import functools
import http.server
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.config.architectures import parse_model_name
from labkit.data.prepare import prepare
from labkit.errors import InputError
from labkit.models.initial_weights import match, read_weights
from labkit.models.keras_application import IMAGENET_MEAN, IMAGENET_STD, bare_application, published_network
from labkit.models.registry import build_model
from labkit.models.weight_source import IMAGENET, WeightSource

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (32, 32, 3)
NAME = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"  # as published
CONFIG = ModelConfig(model="keras_application")


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Let Keras download from this machine into an empty cache; return what is served and the cache."""
    served, cache = tmp_path / "served", tmp_path / "keras"
    served.mkdir()
    cache.mkdir()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    address = f"http://127.0.0.1:{server.server_port}"
    get_file = keras.utils.get_file

    def get_file_here(name, origin, **options):
        return get_file(name, f"{address}/{name}", **{**options, "cache_dir": str(cache), "file_hash": None})

    monkeypatch.setattr("keras.src.applications.mobilenet_v2.file_utils.get_file", get_file_here)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield served, cache / "models" / NAME
        server.shutdown()


def save(network: keras.Model, path) -> None:
    """Write weights as the published files have them: Keras's HDF5 format of versions 1 and 2."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in network.layers]
        for layer in network.layers:
            group = file.create_group(layer.name)
            group.attrs["weight_names"] = [weight.path.encode() for weight in layer.weights]
            for weight in layer.weights:
                group.create_dataset(weight.path, data=weight.numpy())


@pytest.mark.long
@pytest.mark.parametrize(
    ("application", "file"), [("MobileNetV2", NAME), ("EfficientNetB0", "efficientnetb0_notop.h5")]
)
def test_the_backbone_is_loaded_by_keras_names_and_the_head_is_new(published, application, file):
    served, cached = published[0], published[1].with_name(file)
    theirs, config = bare_application(application, SHAPE), replace(CONFIG, application=application)
    random, mean, std = np.random.default_rng(0), np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
    for weight in theirs.weights:
        if weight.name != "count":
            weight.assign(random.uniform(0.9, 1.1, weight.shape))
    if application == "EfficientNetB0":  # whose statistics of pixels are in the file
        theirs.get_layer("normalization").set_weights([mean, std, np.array(0)])
    save(theirs, served / file)
    read_weights(WeightSource(IMAGENET), config, SHAPE)
    assert cached.read_bytes() == (served / file).read_bytes()
    (served / file).unlink()  # from now on the cache has to do
    weights = read_weights(WeightSource(IMAGENET), config, SHAPE)
    model = build_model(config, num_classes=7, image_shape=SHAPE)
    transfer = match(weights, model, tuple("abcdefg"))
    assert set(transfer.missing) == {"logits/kernel", "logits/bias"}
    assert not transfer.mismatched and not transfer.unused
    transfer.load(model)
    images = random.normal(size=(2, *SHAPE)).astype(np.float32)
    prepared = images * 2 * std + 2 * mean - 1
    if application == "EfficientNetB0":  # with ImageNet's weights, Keras divides by another root of std
        prepared = 255 * (images * std + mean)
        theirs.get_layer("normalization").set_weights([mean, std**2, np.array(0)])
        theirs.get_layer("normalization").finalize_state()
    features = theirs(prepared.astype(np.float32), training=False).numpy()
    head = model.get_layer("logits")
    expected = features @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(model(images, training=False), expected, rtol=1e-3, atol=1e-4)


# By labkit's name: Keras's network, its file, and labkit's layer that gives the last features of that file.
OWN = {
    "imagenet_resnet50": (
        "ResNet50",
        "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5",
        "head_global_average1",
    ),
    "imagenet_vgg16": (
        "VGG16",
        "vgg16_weights_tf_dim_ordering_tf_kernels_notop.h5",
        "stage5_max_pool1",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_labkits_own_networks_take_the_weights_of_the_same_architecture(published, name):
    application, file, last = OWN[name]
    theirs = published_network(application, SHAPE)
    random = np.random.default_rng(0)
    for weight in theirs.weights:
        if weight.name != "kernel":
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
    save(theirs, published[0] / file)
    config = ModelConfig(**parse_model_name(name))
    weights = read_weights(WeightSource(IMAGENET), config, SHAPE)
    model = build_model(config, num_classes=7, image_shape=SHAPE)
    transfer = match(weights, model, tuple("abcdefg"))
    assert all(missing.startswith(("logits/", "stage6_")) for missing in transfer.missing)
    assert "logits/kernel" in transfer.missing and not transfer.mismatched and not transfer.unused
    transfer.load(model)

    pixels = random.integers(0, 256, (2, *SHAPE)).astype(np.float32)
    smaller = getattr(keras.applications, application)(include_top=False, weights=None, input_shape=SHAPE)
    smaller.set_weights(theirs.get_weights())
    expected = smaller(
        keras.applications.imagenet_utils.preprocess_input(pixels.copy(), mode="caffe")
    ).numpy()
    scale = 255 * np.array([0.229, 0.224, 0.225])
    images = ((pixels - np.array([123.68, 116.779, 103.939])) / scale).astype(np.float32)
    found = keras.Model(model.inputs, model.get_layer(last).output)(images).numpy()
    expected = expected.mean(axis=(1, 2)) if found.ndim == 2 else expected
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_the_dense_layers_of_vgg_are_read_for_images_of_224_pixels(published):
    config = ModelConfig(model="imagenet_vgg")
    with pytest.raises(InputError, match=r"/vgg16_weights_tf_dim_ordering_tf_kernels\.h5: 404"):
        read_weights(WeightSource(IMAGENET), config, (224, 224, 3))


def test_a_missing_and_a_damaged_file_are_refused_in_one_line(published):
    served, cached = published
    with pytest.raises(InputError, match=rf"--start-from imagenet: .*{NAME}: 404") as refusal:
        read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)
    assert "\n" not in str(refusal.value) and not cached.exists()
    (served / NAME).write_bytes(b"no weights")
    with pytest.raises(InputError, match="MobileNetV2 can't be downloaded or read .* put the published file"):
        read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)


@pytest.mark.long
@pytest.mark.slow
def test_without_a_network_training_ends_with_code_2_before_anything_is_written(tmp_path, session_home):
    prepare("shapes", session_home / "data")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
        command = [sys.executable, "-m", "labkit", "train", "--dataset", "shapes", "--train-steps", "2"]
        command += [
            "--model",
            "keras_application",
            "--start-from",
            "imagenet",
            "--job-dir",
            str(tmp_path / "run"),
        ]
        command += ["--data-dir", str(session_home / "data")]
        environment = {**os.environ, "https_proxy": proxy, "KERAS_HOME": str(tmp_path / "keras")}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, done.stderr[-2000:]
    assert (
        "labkit: error: --start-from imagenet: the weights of MobileNetV2 can't be downloaded" in done.stderr
    )
    assert not (tmp_path / "run").exists()
