"""The memory of this process while images are read."""

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from matplotlib.figure import Figure

from labkit.data.manifest import Manifest
from labkit.data.pipeline import train_dataset
from labkit.figures.style import MARK, OKABE_ITO, drawing

MEGABYTE = 1e6


@dataclass
class Memory:
    """What was read, and how much the memory of this process grew meanwhile, after each batch; in MB."""

    read: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)


def stream_again(manifest: Manifest, megabytes: float, batch_size: int = 250) -> tf.data.Dataset:
    """Return a stream of at least so many MB of uint8 images from the shards, read epoch after epoch."""
    steps = int(megabytes * MEGABYTE / (batch_size * np.prod(manifest.image_shape))) + 1
    return train_dataset(
        manifest,
        global_batch_size=batch_size,
        seed=0,
        start_step=0,
        stop_step=steps,
        augmentation=None,
        standardized=False,
        input_path="streaming",
        shuffle_buffer_size=2000,
    )


def watch_memory(batches: Iterable[Any], *, keep: bool = False, limit: float | None = None) -> Memory:
    """Read ``batches`` and record the growth of this process's resident memory.

    Args:
        batches: of tuples of tensors, the first one images uint8 [b, height, width, channels].
        keep: whether to keep every batch, as a program does that loads its whole data set.
        limit: stop when the memory has grown by this many MB; None: read all.
    """
    gc.collect()
    process, result, kept = psutil.Process(), Memory(), []
    start, read = process.memory_info().rss, 0
    for images, *_ in batches:
        array = images.numpy()
        read += array.nbytes
        if keep:
            kept.append(array.copy())
        result.read.append(read / MEGABYTE)
        result.grown.append((process.memory_info().rss - start) / MEGABYTE)
        if limit is not None and result.grown[-1] > limit:
            break
    return result


def draw_memory(measured: Mapping[str, Memory], limit: float) -> Figure:
    """Draw how the memory grew with what was read.

    Args:
        measured: by what was done.
        limit: in MB, drawn as a line.
    """
    with drawing(8, 3, f"Growth of memory against data read; limit {limit:.0f} MB") as figure:
        axis = figure.subplots()
        for number, (name, memory) in enumerate(measured.items()):
            axis.plot(memory.read, memory.grown, color=OKABE_ITO[number], label=name, linewidth=1.6)
        axis.axhline(limit, color=MARK, linestyle="--", linewidth=1, label=f"limit, {limit:.0f} MB")
        axis.set(title="Memory while reading", xlabel="images read, MB", ylabel="growth of memory, MB")
        axis.set_xlim(left=0)
        axis.grid(axis="y")
        axis.set_ylim(0, 1.45 * limit)
        axis.legend(loc="upper right", ncols=3)
    return figure
