"""ImageNet's weights: fetched once, checked; a clear line where they can't be had. No test goes online."""

import functools
import hashlib
import http.server
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models.keras_application import bare_application
from labkit.models.registry import build_model
from labkit.transfer.imagenet import WEIGHTS, WeightsFile, weights_file
from labkit.transfer.load import match
from labkit.transfer.source import IMAGENET, Place
from labkit.transfer.weights import read_initial_weights

CONTENT = b"weights" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "keras" / "models"


@pytest.fixture
def address(tmp_path):
    served = tmp_path / "served"
    served.mkdir()
    (served / "weights.h5").write_bytes(CONTENT)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_file_is_fetched_into_keras_cache_and_then_found_there(cache, address):
    wanted = WeightsFile(f"{address}/weights.h5", hashlib.md5(CONTENT).hexdigest())
    path = weights_file(wanted, announce=lambda line: None)
    assert path == cache / "weights.h5" and path.read_bytes() == CONTENT
    gone = WeightsFile("http://127.0.0.1:9/weights.h5", wanted.md5)
    assert weights_file(gone) == path
    assert [found.name for found in cache.iterdir()] == ["weights.h5"]


def test_where_nobody_answers_the_line_says_which_file_belongs_where(cache):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/some_weights.h5"
        with pytest.raises(InputError) as refusal:
            weights_file(WeightsFile(url, None), announce=lambda line: None)
    assert "\n" not in str(refusal.value)
    for word in ("--start-from imagenet", url, "some_weights.h5", str(cache)):
        assert word in str(refusal.value)


def test_a_missing_file_and_another_content_are_refused(cache, address):
    with pytest.raises(InputError, match=r"can't be had .*404"):
        weights_file(WeightsFile(f"{address}/others.h5", None), announce=lambda line: None)
    with pytest.raises(InputError, match=r"not the published file .* remove it"):
        weights_file(WeightsFile(f"{address}/weights.h5", "0" * 32), announce=lambda line: None)


def test_the_backbone_is_loaded_by_keras_names_and_the_head_is_new(cache):
    shape = (32, 32, 3)
    theirs = bare_application("MobileNetV2", shape)
    random = np.random.default_rng(0)
    for weight in theirs.weights:
        weight.assign(random.uniform(0.9, 1.1, weight.shape))
    path = cache / WEIGHTS["MobileNetV2"].name
    cache.mkdir(parents=True)
    with legacy_h5_format.h5py.File(path, "w") as file:  # the format of the published files
        legacy_h5_format.save_weights_to_hdf5_group(file, theirs)
    config = ModelConfig(model="keras_application")
    manifest = SimpleNamespace(image_shape=shape)
    weights = read_initial_weights(Place(IMAGENET), config, manifest)
    model = build_model(config, num_classes=7, image_shape=shape)
    transfer = match(weights, model, tuple("abcdefg"))
    assert set(transfer.missing) == {"logits/kernel", "logits/bias"}
    assert len(transfer.loaded) == len(theirs.weights) and not transfer.mismatched and not transfer.unused
    transfer.load(model)
    images = random.normal(size=(2, *shape)).astype(np.float32)
    scaled = images * 2 * np.array([0.229, 0.224, 0.225]) + 2 * np.array([0.485, 0.456, 0.406]) - 1
    features = theirs(scaled.astype(np.float32), training=False).numpy().mean(axis=(1, 2))
    head = model.get_layer("logits")
    expected = features @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(model(images, training=False), expected, rtol=1e-3, atol=1e-4)
