"""The benchmarks' peers are the same networks with the same input, and may be absent."""

import argparse
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    common,
    exported_peer,
    inference,
    input_pipeline,
    train_step,
)
from benchmarks.common import ROOT
from benchmarks.processes import (
    Turns,
)
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.shards import load_split


def network_and_step(config: Config) -> tuple[Any, Any]:
    """Return labkit's network for images of CIFAR-10 and its training step for batches of 16."""
    import tensorflow as tf

    from labkit.models.registry import build_model
    from labkit.optim.optimizers import SGD
    from tests.steps import compiled_step

    network = build_model(config.model, num_classes=10, image_shape=(32, 32, 3))
    optimizer, counter = SGD(network, config.optimizer), tf.Variable(0, dtype=tf.int64)
    options = {"global_batch_size": 16, "label_smoothing": config.optimizer.label_smoothing}
    return network, compiled_step(tf.distribute.get_strategy(), network, optimizer, counter, **options)


@pytest.mark.long
def test_the_keras_peer_is_the_same_network_and_makes_the_same_update():
    import tensorflow as tf

    from benchmarks.keras_fit import compile_peer, make_peer

    # Decay large enough to be seen in three steps, in the weights and in the moving averages.
    values = {"weight_decay": 0.05, "weight_decay_mode": "decoupled", "batch_norm_decay": 0.5}
    config = Config.from_flat({"num_layers": 8, "train_batch_size": 16, **values})
    ours, step = network_and_step(config)
    peer = make_peer(config, num_classes=10, image_shape=(32, 32, 3))
    compile_peer(peer, config, steps_per_execution=1, jit_compile=False)
    peer.set_weights(ours.get_weights())
    generator = np.random.default_rng(0)
    before = [weight.copy() for weight in peer.get_weights()]
    for _ in range(3):
        images = generator.normal(size=(16, 32, 32, 3)).astype(np.float32)
        labels = generator.integers(0, 10, 16).astype(np.int32)
        metrics = step(tf.constant(images), tf.constant(labels), tf.constant(0.1), tf.constant(0.0))
        loss, accuracy, _ = metrics.numpy()
        peer.reset_metrics()
        assert peer.train_on_batch(images, labels) == pytest.approx([loss, accuracy], rel=1e-3)
    for mine, theirs in zip(ours.get_weights(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-4)
    moved = [np.abs(new - old).max() for new, old in zip(peer.get_weights(), before, strict=True)]
    assert min(moved) > 1e-3  # ten times the tolerance: all of them were updated


@pytest.mark.peer("torch")
def test_the_torch_peer_is_the_same_network_and_makes_the_same_update():
    """PyTorch pads strided convolutions on the other side: it gets kernels and images the other way round."""
    import tensorflow as tf
    import torch

    from benchmarks import torch_peer

    # Decay is PyTorch's kind; the rest is what the peer and processes.train_command both say.
    values = {"learning_rate": torch_peer.LEARNING_RATE, "momentum": torch_peer.MOMENTUM}
    values |= {"weight_decay": torch_peer.WEIGHT_DECAY, "weight_decay_mode": "l2"}
    config = Config.from_flat({"num_layers": 14, **values})  # two blocks a stage: with and without stride
    ours, step = network_and_step(config)
    peer = torch_peer.ResNet(14, 10).to(memory_format=torch.channels_last).train()
    with torch.no_grad():
        for mine, theirs in _weights_of_both(ours, peer):
            theirs.copy_(torch.from_numpy(mine.copy()))
    loss_of = torch_peer.make_loss(peer, "float32")
    optimizer = torch_peer.make_optimizer(peer)
    generator = np.random.default_rng(0)
    before = [theirs.detach().clone().numpy() for _, theirs in _weights_of_both(ours, peer)]
    for _ in range(3):
        images = generator.normal(size=(16, 32, 32, 3)).astype(np.float32)
        labels = generator.integers(0, 10, 16)
        rate = tf.constant(config.optimizer.learning_rate)
        metrics = step(tf.constant(images), tf.constant(labels, tf.int32), rate, tf.constant(0.0))
        turned = torch.from_numpy(images[:, ::-1, ::-1].copy()).permute(0, 3, 1, 2)
        optimizer.zero_grad()
        loss = loss_of(turned, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(float(metrics[0]), rel=1e-3)
    for (mine, theirs), old in zip(_weights_of_both(ours, peer), before, strict=True):
        new = theirs.detach().numpy()
        moved = np.abs(new - old).max()
        assert moved > 0
        assert np.abs(new - mine).max() < 0.02 * moved


def _weights_of_both(ours, peer) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield each weight of the Keras model in PyTorch's layout, kernels turned, and PyTorch's own."""
    import keras
    import torch

    from labkit.models.layers import BatchNormalization

    convolutions = [layer for layer in ours.layers if isinstance(layer, keras.layers.Conv2D)]
    theirs = [module for module in peer.modules() if isinstance(module, torch.nn.Conv2d)]
    for convolution, module in zip(convolutions, theirs, strict=True):
        yield convolution.kernel.numpy()[::-1, ::-1].transpose(3, 2, 0, 1), module.weight
    norms = [layer for layer in ours.layers if isinstance(layer, BatchNormalization)]
    theirs = [module for module in peer.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm, module in zip(norms, theirs, strict=True):
        yield norm.gamma.numpy(), module.weight
        yield norm.beta.numpy(), module.bias
        yield norm.moving_mean.numpy(), module.running_mean
        yield norm.moving_variance.numpy(), module.running_var
    logits = ours.get_layer("logits")
    yield logits.kernel.numpy().T, peer.logits.weight
    yield logits.bias.numpy(), peer.logits.bias


@pytest.mark.peer("torch")
def test_the_torch_peer_predicts_alike_with_its_norms_folded():
    import torch

    from benchmarks.torch_peer import ResNet, fold_norms

    torch.manual_seed(0)
    model = ResNet(14, 10)
    images = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        for _ in range(20):
            model(images)  # moves the moving averages
        expected = model.eval()(images)
        fold_norms(model)
        torch.testing.assert_close(model(images), expected, rtol=1e-3, atol=1e-4)
    assert not [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]


@pytest.mark.peer("torch")
def test_the_torch_peer_says_why_it_cannot_compile(shapes, tmp_path, monkeypatch):
    common.write_arrays(shapes, "test", tmp_path / "test.npz")
    told = {
        "task": "predict",
        "form": "compile",
        "precision": "float32",
        "arrays": str(tmp_path / "test.npz"),
    }
    told |= {"num_layers": 8, "batch_size": 4, "steps": 1}
    # A compiler that isn't there, and no cache of what another one made.
    environment = os.environ | {"CXX": "/no/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with Turns("torch_peer", tmp_path, told, environment) as peer:
        found = peer.turn()
    assert found.keys() == {"unavailable"}
    assert "ompiler" in found["unavailable"]


def test_peers_that_are_not_installed_are_left_out_and_the_way_to_them_is_told(monkeypatch, capsys):
    monkeypatch.setattr(common, "find_spec", lambda package: None if package == "torch" else "found")
    parser = argparse.ArgumentParser()
    chosen, left_out = common.choose_sides(parser, "--peers", None, train_step.PEERS)
    assert chosen == ["plain", "steps_per_execution", "xla"]
    assert left_out.keys() == {"torch_eager", "torch_compile"}
    assert "make peers" in capsys.readouterr().out
    chosen, left_out = common.choose_sides(parser, "--forms", None, inference.PACKAGES)
    assert (chosen, set(left_out)) == (["openvino", "onnxruntime"], {"eager", "compile"})
    with pytest.raises(SystemExit) as ended:
        common.choose_sides(parser, "--peers", ["plain", "torch_eager"], train_step.PEERS)
    assert ended.value.code == 2
    assert "--peers torch_eager: torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "runtime", [pytest.param(name, marks=pytest.mark.peer(name)) for name in exported_peer.RUNTIMES]
)
def test_an_exported_network_gets_every_image_of_a_batch_in_its_place(runtime, parts, tmp_path):
    import onnx

    kind = onnx.TensorProto.FLOAT
    mean = onnx.helper.make_node("ReduceMean", ["images"], ["logits"], axes=[1, 2], keepdims=0)
    images = onnx.helper.make_tensor_value_info("images", kind, [None, 2, 2, 3])
    logits = onnx.helper.make_tensor_value_info("logits", kind, [None, 3])
    graph = onnx.helper.make_graph([mean], "mean", [images], [logits])
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "test.onnx")
    told = {"arrays": str(tmp_path / "test.npz"), "batch_size": 4, "parts": parts, "precision": "float32"}
    options = argparse.Namespace(form=runtime, **told)
    predict = exported_peer.RUNTIMES[runtime](options, 1)
    batch = np.random.default_rng(0).normal(size=(4, 2, 2, 3)).astype(np.float32)
    np.save(tmp_path / "test.npy", batch.mean((1, 2)))
    exported_peer.check_logits(predict(batch), options)
    with pytest.raises(RuntimeError, match=f"{runtime} differs from labkit"):
        exported_peer.check_logits(predict(batch[::-1]), options)


def test_the_peers_are_pinned_and_no_dependency_of_labkit():
    lines = (ROOT / "benchmarks" / "peers.txt").read_text().splitlines()
    pinned = [line.partition("==")[::2] for line in lines if not line.startswith("#")]
    assert pinned and all(version for _, version in pinned)
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    for name, _ in pinned:
        assert not any(line.startswith(f"{name}==") for line in locked)


@pytest.mark.long
def test_the_per_example_peer_yields_augmented_standardised_images_of_the_data_set(shapes, tmp_path):
    size = 4
    path = input_pipeline.write_examples(shapes, tmp_path)
    batch, labels = next(iter(input_pipeline.per_example_dataset(shapes, path, size, size)))
    _assert_augmented(shapes, batch.numpy(), labels.numpy())


@pytest.mark.peer("torch")
def test_the_torch_peer_yields_augmented_standardised_images_of_the_data_set(shapes, tmp_path):
    import torch

    from benchmarks.torch_peer import batches

    torch.manual_seed(0)
    common.write_arrays(shapes, "train", tmp_path / "train.npz")
    images, labels = next(batches(np.load(tmp_path / "train.npz"), 4))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len({image.numpy().tobytes() for image in images}) == 4
    _assert_augmented(shapes, images.permute(0, 2, 3, 1).numpy(), labels.numpy())


def _assert_augmented(shapes: Manifest, batch: np.ndarray, batch_labels: np.ndarray) -> None:
    """Each image of ``batch`` is a crop, or its mirror image, of a padded training image of its class."""
    from labkit.data.inputs import PADDING

    images, labels = load_split(shapes, "train")
    padded = np.pad(images, [[0, 0], [PADDING, PADDING], [PADDING, PADDING], [0, 0]])
    assert batch.shape[1:] == shapes.image_shape
    pixels = 255.0 * (batch * np.array(shapes.channel_std) + np.array(shapes.channel_mean))
    np.testing.assert_allclose(pixels, pixels.round(), atol=1e-2)
    for image, label in zip(pixels.round().astype(np.uint8), batch_labels, strict=True):
        assert any((view == image).all((1, 2, 3)).any() for view in _views(padded[labels == label], size=32))


def _views(padded: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield every crop of all images, and its mirror image, without copying."""
    for top, left in itertools.product(range(padded.shape[1] - size + 1), repeat=2):
        crop = padded[:, top : top + size, left : left + size]
        yield crop
        yield crop[:, :, ::-1]


@pytest.mark.peer("torch")
def test_a_peer_that_was_warmed_up_trains_as_if_it_had_not_been(tmp_path):
    import torch

    from benchmarks import torch_recipes

    random = np.random.default_rng(0)
    arrays = {
        "images": random.integers(0, 256, (16_000, 32, 32, 3), np.uint8),
        "labels": random.integers(0, 10, 16_000),
        "mean": np.full(3, 0.5),
        "std": np.full(3, 0.25),
    }
    options = argparse.Namespace(precision="float32", form="eager")
    shown = torch.randn(32, 3, 32, 32)
    losses = []
    for warm in (False, True):
        torch.manual_seed(0)
        training = torch_recipes.airbench94_muon(arrays, options)
        if warm:
            torch_recipes.warm_up(training, arrays, images=32)
        for index in range(2):
            training.step(shown, torch.arange(32) % 10, index)
        losses.append(training.model(shown).detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
