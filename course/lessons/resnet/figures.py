"""The figures of lesson 02."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.resnet.fields import ReceptiveField
from course.lessons.resnet.networks import TrainedNetwork
from labkit.analysis.curves import moving_average
from labkit.figures.style import GREY, MARK, TRAIN, VALIDATION, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.inspection.observer import Observation


def _look(name: str) -> dict[str, Any]:
    """Colour by whether a network has shortcuts, line by its depth."""
    return {
        "color": TRAIN if name.startswith("ResNet") else VALIDATION,
        "linestyle": "--" if name.endswith("-56") else "-",
    }


def loss_figure(trainings: Mapping[str, TrainedNetwork], *, guessing: float) -> "Figure":
    """Draw the smoothed training loss of each network over the steps, and that of guessing in nats."""
    with drawing(7.5, 3.4, f"Training loss over steps of {', '.join(trainings)}") as figure:
        axis = figure.subplots()
        for name, training in trainings.items():
            steps = np.arange(1, len(training.losses) + 1)
            axis.plot(steps, training.losses, alpha=0.15, linewidth=0.7, **_look(name))
            axis.plot(steps, moving_average(training.losses, 0.9), linewidth=1.8, label=name, **_look(name))
        axis.axhline(guessing, color=GREY, linewidth=1, linestyle=":")
        axis.text(
            1.0,
            guessing,
            " guessing",
            color=GREY,
            va="center",
            fontsize=8,
            transform=axis.get_yaxis_transform(),
        )
        axis.set(
            title="Same weights at the start, same batches", xlabel="step", ylabel="cross-entropy (nats)"
        )
        axis.set_ylim(0, 2 * guessing)
        axis.legend(loc="lower left", ncols=2)
    return figure


def depth_figure(observations: "Mapping[str, Observation]", title: str) -> "Figure":
    """Draw the signal and the gradient of each convolution over its position in the network.

    Args:
        observations: of networks, by their names.
        title: when they were observed.
    """
    with drawing(
        9.5, 3.4, f"{title}: standard deviation of the outputs and norm of the gradient by convolution"
    ) as figure:
        left, right = figure.subplots(1, 2)
        for name, seen in observations.items():
            blocks = [
                i for i, layer in enumerate(seen.layers) if layer.endswith("relu2") or "stem_relu" in layer
            ]
            signal = [seen.activation_std[i] for i in blocks]
            kernels = [i for i, layer in enumerate(seen.layers) if "_conv" in layer]
            gradient = [float(seen.gradient_norm[i] or 0.0) for i in kernels]
            left.plot(np.linspace(0, 1, len(signal)), signal, label=name, **_look(name))
            right.plot(np.linspace(0, 1, len(gradient)), gradient, label=name, **_look(name))
        left.set(title=f"Signal, {title}", ylabel="standard deviation of a block's output", ylim=(0, None))
        right.set(title=f"Gradient, {title}", ylabel="norm of the kernel's gradient", yscale="log")
        for axis in (left, right):
            axis.set_xticks([0, 0.5, 1], ["images", "middle", "logits"])
            axis.set_xlabel("position in the network")
            axis.grid(axis="y")
        left.legend()
    return figure


def batch_norm_figure(moved: float) -> "Figure":
    """Draw eight inputs of one channel, the last of them ``moved``, and labkit's normalized outputs."""
    import tensorflow as tf

    from labkit.models.layers import BatchNormalization

    values = np.array([-1.2, -0.8, -0.4, -0.1, 0.2, 0.5, 0.9, moved], np.float32)
    layer = BatchNormalization()
    batch = tf.constant(values[:, None, None, None])
    panels = {
        "Input": values,
        "Training: statistics of the batch": layer(batch, training=True).numpy().ravel(),
        "Prediction: moving statistics": layer(batch, training=False).numpy().ravel(),
    }
    with drawing(
        9.5, 2.8, f"Inputs and normalized outputs of eight examples, the last of them at {moved:+g}"
    ) as figure:
        for axis, (title, shown) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            axis.axhline(0, color=GREY, linewidth=0.8)
            axis.vlines(range(1, 9), 0, shown, color=GREY, linewidth=0.8)
            axis.plot(range(1, 8), shown[:7], "o", color=TRAIN, label="others")
            axis.plot([8], shown[7:], "D", color=MARK, label="the one that moves")
            axis.set(title=title, xlabel="example of the batch", xticks=range(1, 9))
            axis.set_ylim((-9, 9) if title != "Training: statistics of the batch" else (-3, 3))
            axis.grid(axis="y")
        figure.axes[0].set_ylabel("value of one channel")
        figure.axes[0].legend(loc="upper left")
    return figure


def field_figure(field: ReceptiveField) -> "Figure":
    """Draw which pixels change one output of a layer, with the square that the formula gives."""
    from matplotlib.patches import Rectangle

    with drawing(
        5.0,
        4.2,
        f"Receptive field of {field.layer}: {field.counted} pixels, strongest in the middle",
    ) as figure:
        axis = figure.subplots()
        relative = field.strength / field.strength.max()
        with np.errstate(divide="ignore"):
            shown = np.where(relative > 0, np.log10(np.maximum(relative, 1e-30)), np.nan)
        image = axis.imshow(shown, vmin=-6, vmax=0, cmap="cividis")
        top, _, left, _ = field.box
        axis.add_patch(
            Rectangle(
                (left - 0.5, top - 0.5),
                field.counted,
                field.counted,
                fill=False,
                edgecolor=MARK,
                linewidth=1.5,
            )
        )
        axis.set(
            title=f"{field.layer}: {field.counted} × {field.counted} pixels",
            xlabel="column (pixel)",
            ylabel="row (pixel)",
        )
        figure.colorbar(image, ax=axis, label="influence, log10 of its share of the largest", extend="min")
    return figure


def first_kernels(before: NDArray[np.float32], after: NDArray[np.float32]) -> "Figure":
    """Draw the kernels of the first convolution [3, 3, colours, kernels], before and after training."""
    count = before.shape[-1]
    with drawing(
        9.5, 2.2, f"The {count} kernels of the first convolution, before and after training"
    ) as figure:
        rows = figure.subplots(3, count)
        change = np.abs(after - before).max()
        for row, kernels in zip(rows, (before, after, (after - before) / change), strict=True):
            scale = np.abs(kernels).max()
            for axis, kernel in zip(row, np.moveaxis(kernels, -1, 0), strict=True):
                axis.imshow(0.5 + kernel / (2 * scale))
        for axis in rows.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, label in zip(rows[:, 0], ("before", "after", "change"), strict=True):
            axis.set_ylabel(label, rotation=0, ha="right", va="center")
    return figure


def feature_maps(pixels: NDArray[np.uint8], maps: Mapping[str, NDArray[np.float32]]) -> "Figure":
    """Draw an image and the channels of some layers with the largest standard deviation, a row each.

    Args:
        pixels: uint8 [height, width, 3].
        maps: outputs of one image, float [height, width, channels], by the layer's name.
    """
    columns = 8
    with drawing(9.5, 1.05 * len(maps) + 0.3, f"An image and feature maps of {', '.join(maps)}") as figure:
        rows: Any = figure.subplots(len(maps), columns + 1, squeeze=False)
        for row, (name, values) in zip(rows, maps.items(), strict=True):
            strongest = np.argsort(-values.std(axis=(0, 1)))[:columns]
            for axis, channel in zip(row[1:], strongest, strict=False):
                axis.imshow(values[..., channel], cmap="cividis")
            row[1].set_ylabel(
                f"{name}\n{values.shape[0]}×{values.shape[1]}", rotation=0, ha="right", va="center"
            )
        rows[0, 0].imshow(pixels)
        rows[0, 0].set_title("image")
        for axis in rows.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for row in rows[1:]:
            row[0].set_visible(False)
    return figure
