"""How well a shuffle buffer mixes, orders of epochs, and figures of augmentation and standardization."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from labkit.config import Config
from labkit.data.inputs import InputShare
from labkit.data.manifest import Manifest
from labkit.data.pipeline import train_dataset
from labkit.figures.style import GREY, MARK, OKABE_ITO, TRAIN, drawing


def shuffled(count: int, buffer_size: int) -> NDArray[np.int64]:
    """Return the numbers 0 … ``count`` - 1 in the order in which ``Dataset.shuffle`` gives them."""
    numbers = tf.data.Dataset.range(count).shuffle(buffer_size, seed=0).batch(count)
    return next(iter(numbers)).numpy()


def classes_in_a_batch(labels: NDArray[Any], batch_size: int) -> float:
    """Return the mean number of different classes in a batch, for labels int [n] in the order of training."""
    batches = labels[: len(labels) // batch_size * batch_size].reshape(-1, batch_size)
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def draw_shuffling(orders: Mapping[int, NDArray[np.int64]], classes: Mapping[int, float]) -> Figure:
    """Draw where each example comes out of shuffle buffers of several sizes.

    Args:
        orders: for each buffer size, the examples in their new order.
        classes: for each buffer size, the mean number of classes in a batch.
    """
    sizes = ", ".join(map(str, orders))
    with drawing(9.5, 2.7, f"Order before and after a shuffle buffer of {sizes} examples") as figure:
        axes = figure.subplots(1, len(orders), sharey=True)
        for axis, (size, order) in zip(axes, orders.items(), strict=True):
            axis.plot(np.arange(len(order)), order, ".", color=TRAIN, markersize=1.2)
            axis.set_title(f"buffer {size:,}", loc="center")
            label = f"position in training\n{classes[size]:.1f} classes in a batch"
            axis.set(xlabel=label, xlim=(0, len(order)))
        axes[0].set_ylabel("position in the file")
    return figure


def draw_orders(orders: Mapping[str, NDArray[np.int64]]) -> Figure:
    """Draw the order of a few examples in several epochs, one panel each, as lines of coloured cells."""
    with drawing(9.5, 0.42 * len(orders) + 0.7, f"Order of the examples: {', '.join(orders)}") as figure:
        axis = figure.subplots()
        rows = np.stack(list(orders.values()))
        axis.imshow(rows, aspect="auto", cmap="viridis", interpolation="nearest")
        for (row, column), example in np.ndenumerate(rows):
            color = "black" if example > 0.6 * rows.max() else "white"
            axis.text(column, row, str(example), ha="center", va="center", fontsize=7, color=color)
        axis.set_yticks(range(len(orders)), list(orders))
        axis.set(xticks=[], xlabel="position in the epoch →   (colour and number: the example)")
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def draw_crop(image: NDArray[np.uint8], epoch: int, top: int, left: int, flip: bool, padding: int) -> Figure:
    """Draw an image with its padding and the frame of the crop, and beside it what the network sees.

    Args:
        image: uint8 [height, width, 3].
        epoch: for the titles.
        top, left: corner of the crop within the padded image, in pixels.
        flip: whether the crop is mirrored.
        padding: black pixels on each side.
    """
    height, width = image.shape[:2]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    crop = padded[top : top + height, left : left + width]
    mirrored = "mirrored" if flip else "not mirrored"
    alt = f"Epoch {epoch}: crop from row {top}, column {left}, {mirrored}"
    with drawing(5.6, 2.8, alt) as figure:
        before, after = figure.subplots(1, 2)
        before.imshow(padded, interpolation="nearest")
        corner = (left - 0.5, top - 0.5)
        before.add_patch(Rectangle(corner, width, height, fill=False, color=MARK, linewidth=2))
        before.set(title="stored, padded", xlabel=f"crop: row {top}, column {left}")
        after.imshow(crop[:, ::-1] if flip else crop, interpolation="nearest")
        after.set(title=f"shown in epoch {epoch}", xlabel=mirrored)
        for axis in (before, after):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    return figure


def draw_standardization(images: NDArray[np.uint8], standardized: NDArray[np.float32]) -> Figure:
    """Draw the values of each channel before and after standardization.

    Args:
        images: uint8 [n, height, width, 3].
        standardized: float32 of the same shape.
    """
    with drawing(9.5, 2.5, "Histograms of the pixel values before and after standardization") as figure:
        before, after = figure.subplots(1, 2)
        channels = {"red": OKABE_ITO[1], "green": OKABE_ITO[2], "blue": OKABE_ITO[0]}
        for axis, values in ((before, images), (after, standardized)):
            edges = np.linspace(float(values.min()), float(values.max()), 41)
            for channel, (name, color) in enumerate(channels.items()):
                counts, _ = np.histogram(values[..., channel], edges)
                axis.stairs(counts / counts.sum(), edges, color=color, label=name, linewidth=1.4)
        before.set(title="stored", xlabel="pixel value, 0 to 255")
        after.set(title="standardized", xlabel="value, in standard deviations from the mean")
        after.axvline(0, color=GREY, linestyle=":", linewidth=1)
        before.legend(loc="upper right", ncols=3)
    return figure


def images_of_step(
    manifest: Manifest,
    config: Config,
    step: int,
    *,
    began_at: int | None = None,
    replica: int = 0,
    replicas: int = 1,
) -> NDArray[Any]:
    """Return the augmented images of a training step, uint8 [batch / replicas, height, width, channels].

    Args:
        manifest: of the data set.
        config: gives the batch size and the seed.
        step: counted from 0.
        began_at: the step at which the process started; it reads all batches from there. None: ``step``.
        replica: whose slice of the batch is returned.
        replicas: how many share the batch.
    """
    batches = train_dataset(
        manifest,
        global_batch_size=config.data.images_per_step,
        seed=config.run.seed,
        start_step=step if began_at is None else began_at,
        stop_step=step + 1,
        standardized=False,
        input_path="memory",
        share=InputShare(num_replicas=replicas, first_replica=replica),
    )
    *_, (images, _) = batches
    return np.asarray(images)
