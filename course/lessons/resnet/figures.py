"""The figures of lesson 02."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.resnet.fields import ReceptiveField
from labkit.figures import image_grid
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

    side, (top, _, left, _) = field.counted, field.box
    with drawing(5.0, 4.2, f"Receptive field of {field.layer}, strongest in the middle") as figure:
        axis = figure.subplots()
        with np.errstate(divide="ignore"):
            shown = np.log10(field.strength / field.strength.max())
        image = axis.imshow(np.where(np.isfinite(shown), shown, np.nan), vmin=-6, vmax=0, cmap="cividis")
        corner = left - 0.5, top - 0.5
        axis.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=MARK, linewidth=1.5))
        axis.set(
            title=f"{field.layer}: {side} × {side} pixels", xlabel="column (pixel)", ylabel="row (pixel)"
        )
        figure.colorbar(image, ax=axis, label="influence, log10 of its share of the largest", extend="min")
    return figure


def first_kernels(before: NDArray[np.float32], after: NDArray[np.float32]) -> "Figure":
    """Draw the kernels of the first convolution [3, 3, colours, kernels], before and after training."""
    rows = {"before": before, "after": after, "change": after - before}
    scaled = [127.5 * (1 + kernels / np.abs(kernels).max()) for kernels in rows.values()]
    images = np.moveaxis(np.concatenate(scaled, -1), -1, 0).astype(np.uint8)
    return image_grid(images, rows=list(rows), columns=before.shape[-1])


def feature_maps(pixels: NDArray[np.uint8], maps: Mapping[str, NDArray[np.float32]]) -> "Figure":
    """Draw an image, and beside it the channels of a layer with the largest standard deviation, in each row.

    Args:
        pixels: uint8 [height, width, 3].
        maps: outputs of one image, float [height, width, channels], at least 0, by the layer's name.
    """
    shown = []
    for values in maps.values():
        strongest = values[..., np.argsort(-values.std(axis=(0, 1)))[:8]]
        times = len(pixels) // len(values)
        large = (255 * strongest / strongest.max(axis=(0, 1))).repeat(times, axis=0).repeat(times, axis=1)
        shown += [pixels, *np.moveaxis(large, -1, 0)[..., None].repeat(3, axis=-1).astype(np.uint8)]
    rows = [f"{name}, {len(values)}×{values.shape[1]}" for name, values in maps.items()]
    return image_grid(np.stack(shown), rows=rows, columns=9)
