"""The figure of one prediction: the image, every probability, and what the prediction depends on."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.notebook.plots.style import GREY, MARK, TEST, new_figure, shown_name, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions

__all__ = ["draw_heat", "prediction_detail"]

MAX_BARS = 12  # of classes


def prediction_detail(
    predictions: "Predictions", index: int, heat: NDArray[np.float64] | None = None, patch: int = 0
) -> "Figure":
    """Draw an example, its probabilities, and where covering it lowers the probability of the prediction.

    Args:
        predictions: of a split.
        index: position of the example.
        heat: float [height, width], of ``labkit.analysis.saliency.occlusion_map``; None: without.
        patch: side of the covered square in pixels, for the title.
    """
    true, predicted = (
        shown_name(predictions.names(classes[index]), 60) for classes in (predictions.has, predictions.given)
    )
    parts = 2 if heat is None else 3
    with styled():
        figure = new_figure(
            3.2 * parts, 2.9, f"image {predictions.index[index]}: true {true}, predicted {predicted}"
        )
        axes = figure.subplots(1, parts, width_ratios=(1, 1.1, 1.25)[:parts])
        axes[0].imshow(predictions.images[index].squeeze(), cmap="gray", vmin=0, vmax=255)
        axes[0].set(xticks=[], yticks=[], title=f"true: {true}", xlabel=f"predicted: {predicted}")
        _draw_probabilities(axes[1], predictions, index)
        if heat is not None:
            shade = draw_heat(axes[2], predictions.images[index], heat)
            axes[2].set_title(f"covered by {patch}×{patch} pixels")
            figure.colorbar(shade, ax=axes[2], label=f"fall of the probability of {predicted}")
    return figure


def draw_heat(axis: "Axes", image: NDArray[np.uint8], heat: NDArray[np.float64], limit: float = 0.0) -> Any:
    """Draw ``heat`` [height, width] over the grey image. Returns what a colour bar needs.

    ``limit``: end of the colour scale; 0: the largest absolute value.
    """
    limit = limit or float(np.abs(heat).max()) or 1.0
    axis.imshow(image.mean(axis=-1), cmap="gray", vmin=0, vmax=255)
    axis.set(xticks=[], yticks=[])
    return axis.imshow(heat, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=0.75)


def _draw_probabilities(axis: "Axes", predictions: "Predictions", index: int) -> None:
    probabilities, has = predictions.probabilities[index], predictions.has[index]
    given = predictions.given[index]
    shown = np.arange(len(probabilities))
    if len(shown) > MAX_BARS:  # the most probable, and the true ones
        shown = np.union1d(np.argsort(-probabilities, kind="stable")[:MAX_BARS], np.flatnonzero(has))
        shown = shown[np.argsort(-probabilities[shown], kind="stable")]
    colours = [TEST if has[place] else MARK if given[place] else GREY for place in shown]
    bars = axis.barh(range(len(shown)), probabilities[shown], color=colours, height=0.7)
    axis.set_yticks(range(len(shown)), [shown_name(predictions.classes[place]) for place in shown])
    axis.bar_label(bars, [f"{value:.0%}" for value in probabilities[shown]], padding=3, fontsize=7)
    axis.set(xlim=(0, 1.2), xlabel="probability", title="green: the true class")
    axis.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
