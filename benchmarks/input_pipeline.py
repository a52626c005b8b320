"""How much faster is the input pipeline than one example at a time, and how long does a step wait for it?

The peer has the design of TensorFlow's cifar10_estimator (2017), with today's `tf.data`: `map` parses, pads,
crops, flips and standardises one record at a time, a `tf.train.Example` as its own converter wrote it; then
examples are shuffled and batched. It is measured with the original number of parallel calls (one for each
example of a batch) and with autotuning. The ratio is to the faster of the two.

Images over 64 pixels are stored as JPEGs and get random-resized-crop. They are measured on mosaics of the
data set's images, which are as detailed as photographs, and the published ResNet-18 trains on them.
"""

import argparse
import io
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import Training, train_flags
from benchmarks.report import Figure, Goal, Report
from labkit.data.augment import PADDING, Distortion
from labkit.data.inputs import SMALLEST_SHARE
from labkit.data.manifest import Manifest
from labkit.data.network_input import standardize
from labkit.data.pipeline import train_dataset
from labkit.data.records import write_derived
from labkit.data.shards import load_split

QUESTION = (
    "Is the input pipeline at least 3 times as fast as per-example map, and does a step wait at most 2 %?"
)
SPEED_GOAL = Goal("at least", 3.0)
WAIT_GOAL = Goal("at most", 2.0)
JPEG_WAIT_GOAL = Goal("at most", 5.0)
JPEG_BATCH_SIZES = (32, 128)
JPEG_EXAMPLES = 1024
EXAMPLE = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
ENDLESS = 10_000_000


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batches", type=at_least(1), default=400, help="batches of a turn")
    parser.add_argument(
        "--warmup-batches", type=at_least(1), default=400, help="batches before those of a turn"
    )
    parser.add_argument("--steps", type=at_least(1), default=24, help="training steps of a turn")
    parser.add_argument("--warmup-steps", type=at_least(1), default=10, help="steps before the first turn")
    parser.add_argument("--jpeg-side", type=at_least(65), default=128, help="pixels of the large images")
    options = parser.parse_args(arguments)
    options.model = "resnet"
    manifest = prepared_data(options.data_dir)
    report = Report("input_pipeline", QUESTION, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        speeds = measure_speeds(manifest, options, folder)
        waits = {path: measure_waits(manifest, options, path, folder) for path in ("memory", "streaming")}
        large = jpeg_data(manifest, folder / "jpegs", options.jpeg_side)
        jpeg_speeds = measure_jpeg_speeds(large, options)
        changed = {"batch_size": JPEG_BATCH_SIZES[0], "model": "imagenet_resnet", "num_layers": 18}
        shorter = argparse.Namespace(**vars(options) | changed)
        shorter.steps = max(2, options.steps // 4)
        jpeg_waits = {
            f"ResNet-18, JPEGs, {path}": measure_waits(large, shorter, path, folder, f"jpegs-{path}")
            for path in ("memory", "streaming")
        }
    report.finish(figures(speeds, waits, jpeg_speeds, jpeg_waits), options.output)


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


def measure_jpeg_speeds(manifest: Manifest, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return images per second of each input path and batch size, one value per repeat, in turns."""
    arrays = load_split(manifest, "train")
    pipelines = {
        f"JPEGs, {path}, batch {size}": (
            train_dataset(
                manifest,
                global_batch_size=size,
                seed=0,
                start_step=0,
                stop_step=ENDLESS,
                distortion=Distortion(random_resized_crop=SMALLEST_SHARE),
                input_path=path,
                arrays=arrays if path == "memory" else None,
            ),
            size,
        )
        for path in ("memory", "streaming")
        for size in JPEG_BATCH_SIZES
    }
    speeds: dict[str, list[float]] = {name: [] for name in pipelines}
    count = options.batches * 8  # images of a turn: they have 16 times the pixels
    for _ in range(options.repeats):
        for name, (dataset, size) in pipelines.items():
            batches = -(-count // size)
            speeds[name].append(_images_per_second(dataset, batches, batches, size))
    return speeds


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

    def ours(path: str) -> tf.data.Dataset:
        arrays = load_split(manifest, "train") if path == "memory" else None
        return train_dataset(
            manifest,
            global_batch_size=size,
            seed=0,
            start_step=0,
            stop_step=ENDLESS,
            input_path=path,
            arrays=arrays,
        )

    pipelines = {
        "memory": ours("memory"),
        "streaming": ours("streaming"),
        "per example, autotuned": per_example_dataset(manifest, path, size, tf.data.AUTOTUNE),
        "per example, a call for each example": per_example_dataset(manifest, path, size, size),
    }
    speeds: dict[str, list[float]] = {name: [] for name in pipelines}
    for repeat in range(options.repeats):
        for name in list(pipelines) if repeat % 2 == 0 else list(pipelines)[::-1]:
            dataset, warmup = pipelines[name], options.warmup_batches
            speeds[name].append(_images_per_second(dataset, warmup, options.batches, size))
        line = "  ".join(f"{name} {values[-1]:,.0f}" for name, values in speeds.items())
        print(f"repeat {repeat + 1}/{options.repeats}, images/s: {line}", flush=True)
    return speeds


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
    manifest: Manifest, options: argparse.Namespace, path: str, folder: Path, name: str = ""
) -> list[float]:
    """Return the share of its time that ``labkit train`` waits for input, in per cent."""
    flags = train_flags(
        manifest,
        model=options.model,
        num_layers=options.num_layers,
        batch_size=options.batch_size,
        input_path=path,
    )
    with Training(folder / (name or path), flags) as training:
        training.start(options.warmup_steps)
        return [wait_percent(training.turn(options.steps)[1:]) for _ in range(options.repeats)]


def wait_percent(rows: Sequence[dict[str, Any]]) -> float:
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
    ratios = {
        path: tuple(ours / theirs for ours, theirs in zip(speeds[path], peers[best], strict=True))
        for path in ("memory", "streaming")
    }
    return [
        Figure(f"memory path over {best}", "x", ratios["memory"], SPEED_GOAL),
        Figure(f"streaming path over {best}", "x", ratios["streaming"], SPEED_GOAL),
        *(
            Figure(f"share of a training step spent waiting, {path}", "%", tuple(values), WAIT_GOAL)
            for path, values in waits.items()
        ),
        *(
            Figure(f"share of a training step spent waiting, {path}", "%", tuple(values), JPEG_WAIT_GOAL)
            for path, values in jpeg_waits.items()
        ),
        *(Figure(name, "images/s", tuple(values)) for name, values in {**speeds, **jpeg_speeds}.items()),
    ]


if __name__ == "__main__":
    main()
