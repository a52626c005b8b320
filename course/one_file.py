"""ResNet-20 in one file, to be read from top to bottom: data, network, step, schedule, checkpoint, loop.

It takes the data sets of ``labkit data prepare`` and some flags of ``labkit train``, and imports neither
labkit nor the course::

    labkit data prepare --dataset cifar10 --data-dir DATA
    python course/one_file.py --dataset cifar10 --data-dir DATA --train-steps 200 --job-dir ONE

On the same machine, this command computes the same losses and final weights, bit for bit::

    labkit train --preset resnet20_one_cycle --deterministic --num-gpus 0 \\
        --dataset cifar10 --data-dir DATA --train-steps 200 --job-dir OTHER

Kill the program and start it again: it goes on from its last checkpoint, and the result is the same.
"""

import argparse
import functools
import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# oneDNN's kernels add in another order than TensorFlow's own. To be chosen before the import.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # prints errors only

import keras
import tensorflow as tf

Array = NDArray[Any]
Variables = dict[str, tf.Variable]  # by name


# ---- the data: from files to arrays
def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what a prepared data set says of itself. Ends the program if it can't be trained on here."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"one_file: no data set in {folder} ({error}); make one with labkit data prepare")
    kind = manifest["image_format"], manifest["multi_label"], manifest["target_mean"]
    if kind != ("pixels", False, None) or max(manifest["image_shape"]) > 64:
        sys.exit(f"one_file: {folder} isn't of images up to 64 pixels with one class each, as cifar10 is")
    return manifest


def read_split(folder: Path, manifest: dict[str, Any], split: str) -> tuple[Array, Array]:
    """Return images uint8 [n, height, width, channels] and labels int32 [n] of ``train`` or ``test``.

    A TFRecord is a frame of length and checksums around what is stored: here index, label and pixels. All
    records have the same size, so NumPy reads a file at once. Ends the program if a file is damaged.
    """
    fields = [("length", "V12"), ("index", "<i8"), ("label", "<i4"), ("image", "u1", manifest["image_shape"])]
    parts = []
    for shard in manifest["splits"][split]["shards"]:
        content = (folder / shard["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != shard["sha256"]:
            sys.exit(f"one_file: {folder / shard['file']} is damaged; run labkit data prepare again")
        parts.append(np.frombuffer(content, np.dtype([*fields, ("checksum", "V4")])))
    records = np.concatenate(parts)
    return records["image"].copy(), records["label"].copy()


def standardized(pixels: Array, manifest: dict[str, Any]) -> Array:
    """Return (pixels / 255 - mean) / std, float32, with each channel's statistics over the training images.

    It is computed as pixels · scale + shift: formulas that are equal on paper round in different ways.
    """
    mean, std = np.array(manifest["channel_mean"]), np.array(manifest["channel_std"])
    scale, shift = 1.0 / (255.0 * std), -mean / std
    return pixels.astype(np.float32) * scale.astype(np.float32) + shift.astype(np.float32)


# ---- what is random: hashes
# A random number generator has a state that a checkpoint would have to hold. A hash of (seed, epoch, image)
# has none. So the batch of a step depends on its number alone, whatever happened before.
def hashed(*values: Any) -> NDArray[np.uint64]:
    """Hash integers, or arrays of them, to 64 bits that look random: splitmix64 (Steele et al. 2014)."""
    state = np.zeros(1, np.uint64)  # an array: NumPy would warn that a single number overflows
    for value in values:
        state = state + np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


@functools.lru_cache(maxsize=2)  # a batch may span two epochs
def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the order of the training images in an epoch: sorted by their hashes, the largest first."""
    hashes = hashed(seed, int.from_bytes(b"order"), epoch, np.arange(count)).view(np.int64)
    return np.argsort(~hashes, kind="stable")  # ~ turns the order around


def batch_of_step(images: Array, labels: Array, step: int, size: int, seed: int) -> tuple[Array, Array]:
    """Return images and labels of a step, from 0, cropped and flipped at random, uint8 and int32 [size].

    As in He et al. 2015 (arXiv:1512.03385, section 4.2): four zeros on each side, a random crop of the
    image's own size, and in half of the cases its mirror image.
    """
    count, height, width, _ = images.shape
    epochs, places = np.divmod(step * size + np.arange(size), count)
    index = np.array([epoch_order(seed, epoch, count)[at] for epoch, at in zip(epochs, places, strict=True)])
    # One draw below 2 · 9 · 9 for each image: 32 of the 64 bits, scaled. Its parts are top, left and flip.
    draws = ((hashed(seed, int.from_bytes(b"dist"), epochs, index) >> 32) * 162 >> 32).astype(int)
    padded, crops = np.pad(images[index], ((0, 0), (4, 4), (4, 4), (0, 0))), images[index]
    for row, draw in enumerate(draws):
        top, left, flip = draw // 18, draw // 2 % 9, draw % 2
        crop = padded[row, top : top + height, left : left + width]
        crops[row] = crop[:, ::-1] if flip else crop
    return crops, labels[index]


# ---- the network: ResNet-20 (He et al. 2015)

# Name, channels and stride of each residual block. Nine blocks of two convolutions, the convolution before
# them and the layer behind them: 20 layers.
BLOCKS = [
    (f"stage{stage}_block{block}", channels, 2 if stage > 1 and block == 1 else 1)
    for stage, channels in ((1, 16), (2, 32), (3, 64))
    for block in (1, 2, 3)
]
NORM = {"gamma": 1.0, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1.0}  # their initial values


def initial_weights(channels: int, classes: int, seed: int) -> Variables:
    """Return all weights, float32. The kernels are random, each from a seed of its own."""
    weights: Variables = {}
    seeds = iter((seed * 1_000_003 + number) % 2**31 for number in range(1, 21))

    def add_convolution(scope: str, number: int, before: int, after: int) -> None:
        kernel = keras.initializers.HeNormal(next(seeds))((3, 3, before, after), "float32")
        weights[f"{scope}_conv{number}/kernel"] = tf.Variable(kernel)
        for name, value in NORM.items():
            variable = tf.Variable(tf.fill([after], value), trainable=name in ("gamma", "beta"))
            weights[f"{scope}_norm{number}/{name}"] = variable

    add_convolution("stem", 1, channels, before := 16)
    for scope, after, _ in BLOCKS:
        add_convolution(scope, 1, before, after)
        add_convolution(scope, 2, after, before := after)
    kernel = keras.initializers.GlorotUniform(next(seeds))((before, classes), "float32")
    return weights | {"logits/kernel": tf.Variable(kernel), "logits/bias": tf.Variable(tf.zeros([classes]))}


def network(weights: Variables, images: tf.Tensor, statistics: list[Any] | None = None) -> tf.Tensor:
    """Return the logits [n, classes] of standardized images [n, height, width, channels].

    In training, ``statistics`` is a list: batch normalization uses mean and variance of the batch, and
    appends (moving average, value in this batch) of both. Otherwise it uses the moving averages.
    """

    def convolution(x: tf.Tensor, scope: str, number: int, stride: int = 1) -> tf.Tensor:
        x = tf.nn.conv2d(x, weights[f"{scope}_conv{number}/kernel"], stride, "SAME")
        gamma, beta, *moving = (weights[f"{scope}_norm{number}/{name}"] for name in NORM)
        # One fused kernel is faster on CPUs than Keras's layer, which makes several operations of it.
        normalize = functools.partial(tf.compat.v1.nn.fused_batch_norm, x, gamma, beta, epsilon=1e-5)
        if statistics is None:
            return normalize(mean=moving[0], variance=moving[1], is_training=False)[0]
        x, *of_batch = normalize()
        statistics.extend(zip(moving, of_batch, strict=True))
        return x

    x = tf.nn.relu(convolution(images, "stem", 1))
    for scope, channels, stride in BLOCKS:
        shortcut = x
        if stride == 2:  # half as many rows and columns, twice as many channels: the new ones are zeros
            zeros = [[0, 0], [0, 0], [0, 0], [channels // 4] * 2]
            shortcut = tf.pad(tf.nn.avg_pool2d(x, 2, 2, "SAME"), zeros)
        x = tf.nn.relu(convolution(x, scope, 1, stride))
        x = tf.nn.relu(convolution(x, scope, 2) + shortcut)
    x = tf.reduce_mean(x, [1, 2])
    return tf.nn.bias_add(tf.matmul(x, weights["logits/kernel"]), weights["logits/bias"])


# ---- the step: loss, gradient, update
def make_train_step(weights: Variables, velocities: Variables) -> Any:
    """Return ``train_step(images, labels, rate)``, which moves the weights and returns the loss before it."""

    # Python runs these lines at the first call only. They leave a graph of operations, which TensorFlow
    # repeats in every step, several operations at a time.
    @tf.function(autograph=False)
    def train_step(images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        statistics: list[Any] = []
        with tf.GradientTape() as tape:
            logits = network(weights, images, statistics)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / labels.shape[0]
        for name, gradient in tape.gradient(loss, {name: weights[name] for name in velocities}).items():
            weight = weights[name]
            if len(weight.shape) > 1:  # weight decay of kernels; gamma, beta and bias don't decay
                gradient = gradient + 5e-4 * weight
            # v = 0.9 v + g, then w = w - rate · (g + 0.9 v), which is Nesterov's form. One operation does
            # both; written as several, the same formula gives other last bits.
            var, accum = weight.handle, velocities[name].handle
            tf.raw_ops.ResourceApplyMomentum(
                var=var, accum=accum, lr=rate, grad=gradient, momentum=0.9, use_nesterov=True
            )
        for average, value in statistics:  # for predictions: 0.9 of the old average stays
            average.assign_sub(0.1 * (average - value))
        return loss

    return train_step


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the rate of a step, from 0: along a line to the peak at a quarter of the run, then to 0."""
    rise = 0.25 * steps
    if step + 1 <= rise:
        return peak * ((step + 1) / rise)
    return peak * min(1.0, (steps - step) / (steps - rise))


# ---- checkpoints: all that the next step depends on
def save(path: Path, state: Variables, losses: list[float], settings: str) -> None:
    """Write the variables, the losses of all steps so far, and the settings of the run.

    The file gets its name when it is whole and on the disk, so a kill leaves the checkpoint before it.
    """
    values = {name: variable.numpy() for name, variable in state.items()}
    with open(path.with_suffix(".tmp"), "wb") as file:
        np.savez(file, losses=np.array(losses, np.float32), settings=settings, **values)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".tmp"), path)


def restore(path: Path, state: Variables, settings: str) -> list[float]:
    """Load the checkpoint, if there is one. Returns the losses of the steps that are done, [] for none."""
    if not path.exists():
        return []
    with np.load(path) as saved:
        if str(saved["settings"]) != settings:
            sys.exit(f"one_file: {path} has {saved['settings']}, not {settings}; give another --job-dir")
        for name, variable in state.items():
            variable.assign(saved[name])
        return saved["losses"].tolist()


# ---- the program
def main() -> None:
    """Train to the last step, from the checkpoint if there is one. Then count the right test images."""
    parser = argparse.ArgumentParser(description="Train ResNet-20.", allow_abbrev=False)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of prepared data sets")
    parser.add_argument("--job-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--dataset", default="cifar10", help="name of the data set")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="peak of the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights, order and augmentation")
    parser.add_argument("--evaluate-test", action=argparse.BooleanOptionalAction, default=True)
    for name, default in (("train-steps", 2461), ("train-batch-size", 128), ("checkpoint-every-steps", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    flags = parser.parse_args()
    size, steps, seed, peak = flags.train_batch_size, flags.train_steps, flags.seed, flags.learning_rate
    if min(size, steps, flags.checkpoint_every_steps, seed + 1) < 1:
        sys.exit(f"one_file: {' '.join(sys.argv[1:])}: numbers are allowed from 1, and --seed from 0")

    tf.config.set_visible_devices([], "GPU")
    # Threads may add in any order, and the last bits of a sum depend on it. So they keep to one.
    tf.config.experimental.enable_op_determinism()
    folder = flags.data_dir / flags.dataset
    manifest = read_manifest(folder)
    images, labels = read_split(folder, manifest, "train")
    weights = initial_weights(images.shape[-1], len(manifest["classes"]), seed)
    velocities = {name: tf.Variable(tf.zeros_like(w)) for name, w in weights.items() if w.trainable}
    train_step = make_train_step(weights, velocities)

    flags.job_dir.mkdir(parents=True, exist_ok=True)
    path = flags.job_dir / "checkpoint.npz"
    state = weights | {f"velocity of {name}": velocity for name, velocity in velocities.items()}
    settings = json.dumps(
        {"data": manifest["checksum"], "steps": steps, "batch": size, "learning rate": peak, "seed": seed}
    )
    losses = restore(path, state, settings)
    for step in range(len(losses), steps):
        pixels, targets = batch_of_step(images, labels, step, size, seed)
        inputs = standardized(pixels, manifest), targets, np.float32(learning_rate(step, steps, peak))
        losses.append(float(train_step(*map(tf.constant, inputs))))
        if not math.isfinite(losses[-1]):
            sys.exit(f"one_file: the loss is {losses[-1]}; lower --learning-rate ({peak:g})")
        if step + 1 == steps or (step + 1) % flags.checkpoint_every_steps == 0:
            save(path, state, losses, settings)
            print(f"step {step + 1} of {steps}: loss {losses[-1]:.4f}, saved", flush=True)

    if flags.evaluate_test:
        images, labels = read_split(folder, manifest, "test")
        predict = tf.function(lambda part: tf.argmax(network(weights, part), axis=1), autograph=False)
        parts = np.array_split(standardized(images, manifest), math.ceil(len(images) / 500))
        right = np.concatenate([predict(tf.constant(part)) for part in parts]) == labels
        print(f"test accuracy {right.mean():.4f}")


if __name__ == "__main__":
    main()
