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
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.data.prepare import prepare
from labkit.errors import InputError
from labkit.models.keras_application import bare_application
from labkit.models.registry import build_model
from labkit.transfer.load import match
from labkit.transfer.source import IMAGENET, WeightSource
from labkit.transfer.weights import read_weights

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
        return get_file(name, f"{address}/{name}", **{**options, "cache_dir": str(cache)})

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


def test_the_backbone_is_loaded_by_keras_names_and_the_head_is_new(published):
    served, cached = published
    theirs = bare_application("MobileNetV2", SHAPE)
    random = np.random.default_rng(0)
    for weight in theirs.weights:
        weight.assign(random.uniform(0.9, 1.1, weight.shape))
    save(theirs, served / NAME)
    read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)
    assert cached.read_bytes() == (served / NAME).read_bytes()
    (served / NAME).unlink()  # from now on the cache has to do
    weights = read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)
    model = build_model(CONFIG, num_classes=7, image_shape=SHAPE)
    transfer = match(weights, model, tuple("abcdefg"))
    assert set(transfer.missing) == {"logits/kernel", "logits/bias"}
    assert len(transfer.loaded) == len(theirs.weights) and not transfer.mismatched and not transfer.unused
    transfer.load(model)
    images = random.normal(size=(2, *SHAPE)).astype(np.float32)
    scaled = images * 2 * np.array([0.229, 0.224, 0.225]) + 2 * np.array([0.485, 0.456, 0.406]) - 1
    features = theirs(scaled.astype(np.float32), training=False).numpy().mean(axis=(1, 2))
    head = model.get_layer("logits")
    expected = features @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(model(images, training=False), expected, rtol=1e-3, atol=1e-4)


def test_a_missing_and_a_damaged_file_are_refused_in_one_line(published):
    served, cached = published
    with pytest.raises(InputError, match=rf"--start-from imagenet: .*{NAME}: 404") as refusal:
        read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)
    assert "\n" not in str(refusal.value) and not cached.exists()
    (served / NAME).write_bytes(b"no weights")
    with pytest.raises(InputError, match="MobileNetV2 can't be downloaded or read .* put the published file"):
        read_weights(WeightSource(IMAGENET), CONFIG, SHAPE)


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
