"""How much faster is the input pipeline than one example at a time, and how long does a step wait for it?

The peer has the design of TensorFlow's cifar10_estimator (2017), with today's `tf.data`: `map` parses, pads,
crops, flips and standardises one record at a time, a `tf.train.Example` as its own converter wrote it; then
examples are shuffled and batched. It is measured with the original number of parallel calls (one for each
example of a batch) and with autotuning. The ratio is to the faster of the two.

Images over 64 pixels are stored as JPEGs and get random-resized-crop. They are measured on mosaics of the
data set's images, which are as detailed as photographs, and the published ResNet-18 trains on them.
"""

import argparse
import functools
import io
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks.common import at_least, make_parser, measure_and_report, take_turns
from benchmarks.processes import Row, Training, train_command
from benchmarks.report import Figure, Goal, ratios
from labkit.data.augment import Augmentation
from labkit.data.inputs import PADDING, SMALLEST_SHARE
from labkit.data.manifest import Manifest
from labkit.data.network_input import standardize
from labkit.data.pipeline import train_dataset
from labkit.data.records import write_derived
from labkit.data.shards import load_split

SPEED_GOAL = Goal("at least", 3.0)
WAIT_GOAL = Goal("at most", 2.0)
JPEG_WAIT_GOAL = Goal("at most", 5.0)
JPEG_BATCH_SIZES = (32, 128)
JPEG_EXAMPLES = 1024
EXAMPLE = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
ENDLESS = 10_000_000
PATHS = ("memory", "streaming")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=24, warmup_steps=10)
    parser.add_argument("--batches", type=at_least(1), default=400, help="batches of a turn")
    parser.add_argument(
        "--warmup-batches", type=at_least(1), default=400, help="batches before those of a turn"
    )
    parser.add_argument("--jpeg-side", type=at_least(65), default=128, help="pixels of the large images")
    measure_and_report("input_pipeline", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure the pipelines by themselves, and how long a step waits for each path."""
    speeds = measure_speeds(manifest, options, folder)
    waits = {
        path: measure_waits(manifest, options, options.steps, folder / path, input_path=path)
        for path in PATHS
    }
    large = jpeg_data(manifest, folder / "jpegs", options.jpeg_side)
    jpeg_speeds = measure_jpeg_speeds(large, options)
    resnet18 = {"model": "imagenet_resnet", "num_layers": 18, "train_batch_size": JPEG_BATCH_SIZES[0]}
    steps = max(2, options.steps // 4)
    jpeg_waits = {
        f"ResNet-18, JPEGs, {path}": measure_waits(
            large, options, steps, folder / f"jpegs-{path}", input_path=path, **resnet18
        )
        for path in PATHS
    }
    return figures(speeds, waits, jpeg_speeds, jpeg_waits)


def jpeg_data(manifest: Manifest, folder: Path, side: int) -> Manifest:
    """Write mosaics of training images, ``side`` x ``side`` pixels, as JPEGs to a data set of its own."""
    images, labels = load_split(manifest, "train")
    height, width, channels = manifest.image_shape
    down, across = -(-side // height), -(-side // width)
    count = min(JPEG_EXAMPLES, len(images) // (down * across))
    tiles = images[: count * down * across].reshape(count, down, across, height, width, channels)
    mosaics = tiles.transpose(0, 1, 3, 2, 4, 5).reshape(count, down * height, across * width, channels)
    contents = []
    for mosaic in mosaics[:, :side, :side]:
        file = io.BytesIO()
        Image.fromarray(mosaic).save(file, "JPEG", quality=95, subsampling=0)
        contents.append(file.getvalue())
    print(f"{count} JPEGs of {np.mean([len(content) for content in contents]) / 1000:.1f} kB", flush=True)
    splits = {"train": (contents, labels[:count]), "test": (contents[:100], labels[:100])}
    return write_derived(manifest, folder, splits, image_shape=(side, side, channels))


def our_dataset(manifest: Manifest, path: str, size: int, **options: Any) -> tf.data.Dataset:
    """Return labkit's training batches of ``size`` examples by an input path, without end."""
    return train_dataset(
        manifest,
        global_batch_size=size,
        seed=0,
        start_step=0,
        stop_step=ENDLESS,
        input_path=path,
        arrays=load_split(manifest, "train") if path == "memory" else None,
        **options,
    )


def measure_jpeg_speeds(manifest: Manifest, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return images per second of each input path and batch size, one value per repeat, in turns."""
    crops = Augmentation(random_resized_crop=SMALLEST_SHARE)
    turns = {}
    for path, size in itertools.product(PATHS, JPEG_BATCH_SIZES):
        dataset = our_dataset(manifest, path, size, augmentation=crops)
        batches = -(-options.batches * 8 // size)  # 8 images for a batch: they have 16 times the pixels
        turn = functools.partial(_images_per_second, dataset, batches, batches, size)
        turns[f"JPEGs, {path}, batch {size}"] = turn
    return take_turns(turns, options.repeats)


def write_examples(manifest: Manifest, folder: Path) -> str:
    """Write the training images as the peer's converter did, and return the path of the file."""
    path = str(folder / "train.tfrecords")
    with tf.io.TFRecordWriter(path) as writer:
        for image, label in zip(*load_split(manifest, "train"), strict=True):
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return path


def per_example_dataset(
    manifest: Manifest, path: str, batch_size: int, parallel_calls: int
) -> tf.data.Dataset:
    """Return the peer's batches: (images float32 [b, h, w, c], labels int32 [b]).

    Args:
        manifest: of the prepared data set.
        path: its training images, by :func:`write_examples`.
        batch_size: examples in a batch.
        parallel_calls: of ``map``; ``tf.data.AUTOTUNE`` or a number.
    """
    height, width, channels = manifest.image_shape

    def parse(serialized: tf.Tensor):
        example = tf.io.parse_single_example(serialized, EXAMPLE)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), manifest.image_shape)
        image = tf.cast(image, tf.float32)
        image = tf.image.resize_with_crop_or_pad(image, height + 2 * PADDING, width + 2 * PADDING)
        image = tf.image.random_crop(image, [height, width, channels])
        image = tf.image.random_flip_left_right(image)
        return standardize(image, manifest), tf.cast(example["label"], tf.int32)

    records = tf.data.TFRecordDataset(path).repeat()
    # As in cifar10_estimator: a shuffle buffer of 0.4 epochs and three batches, two batches prefetched.
    buffer_size = int(0.4 * manifest.count("train")) + 3 * batch_size
    examples = records.map(parse, num_parallel_calls=parallel_calls).prefetch(2 * batch_size)
    return examples.shuffle(buffer_size).batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def measure_speeds(manifest: Manifest, options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return images per second of every pipeline, one value per repeat, measured in turns in this process."""
    size = options.batch_size
    path = write_examples(manifest, folder)
    pipelines = {
        **{path: our_dataset(manifest, path, size) for path in PATHS},
        "per example, autotuned": per_example_dataset(manifest, path, size, tf.data.AUTOTUNE),
        "per example, a call for each example": per_example_dataset(manifest, path, size, size),
    }
    counts = options.warmup_batches, options.batches, size
    turns = {
        name: functools.partial(_images_per_second, dataset, *counts) for name, dataset in pipelines.items()
    }
    return take_turns(turns, options.repeats)


def _images_per_second(dataset: tf.data.Dataset, warmup: int, count: int, batch_size: int) -> float:
    """Return the speed over ``count`` batches, after ``warmup`` batches.

    The pipeline is started for each call: one that waits would fill its buffers while another is measured.
    """
    batches = iter(dataset)
    for _ in range(warmup):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * batch_size / (time.perf_counter() - started)


def measure_waits(
    manifest: Manifest, options: argparse.Namespace, steps: int, folder: Path, **fields: Any
) -> list[float]:
    """Return the share of its time that ``labkit train`` waits for input, in per cent, of each repeat.

    ``steps``: of a turn. ``fields``: of the configuration.
    """
    with Training(folder, train_command(options, manifest, **fields)) as training:
        training.start(options.warmup_steps)
        return [wait_percent(training.turn(steps)[1:]) for _ in range(options.repeats)]


def wait_percent(rows: Sequence[Row]) -> float:
    """Return the share of the rows' time that was spent waiting for input, in per cent."""
    seconds = sum(row["seconds_per_step"] for row in rows)
    return 100.0 * sum(row["input_wait_fraction"] * row["seconds_per_step"] for row in rows) / seconds


def figures(
    speeds: dict[str, list[float]],
    waits: dict[str, list[float]],
    jpeg_speeds: dict[str, list[float]],
    jpeg_waits: dict[str, list[float]],
) -> list[Figure]:
    """Return the ratios to the faster peer and the waiting shares, which have goals, then all speeds."""
    peers = {name: values for name, values in speeds.items() if name.startswith("per example")}
    best = max(peers, key=lambda name: statistics.median(peers[name]))
    shares = [(waits, WAIT_GOAL), (jpeg_waits, JPEG_WAIT_GOAL)]
    return [
        *(
            Figure(f"{path} path over {best}", "x", ratios(speeds[path], peers[best]), SPEED_GOAL)
            for path in PATHS
        ),
        *(
            Figure(f"share of a training step spent waiting, {path}", "%", values, goal)
            for measured, goal in shares
            for path, values in measured.items()
        ),
        *(Figure(name, "images/s", values) for name, values in {**speeds, **jpeg_speeds}.items()),
    ]


if __name__ == "__main__":
    main()
