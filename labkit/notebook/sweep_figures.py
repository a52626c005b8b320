"""The figures of a sweep: accuracy over two parameters, and the training losses."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import InputError
from labkit.notebook.sweep import Sweep
from labkit.plots.style import MARK, OKABE_ITO, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accuracy_table", "heat_map", "loss_curves"]


def accuracy_table(sweep: Sweep, rows: str, columns: str) -> tuple[list[object], list[object], np.ndarray]:
    """Return the values of two parameters and the accuracies, float64 [row, column], NaN without a result.

    Raises InputError for a parameter that the sweep doesn't vary, and where it varies others too.
    """
    names = list(sweep.points[0].values)
    if sorted((rows, columns)) != sorted(names):
        raise InputError(f"the sweep varies {', '.join(names)}; a heat map shows two parameters: name them")
    of_rows = list(dict.fromkeys(point.values[rows] for point in sweep.points))
    of_columns = list(dict.fromkeys(point.values[columns] for point in sweep.points))
    found = np.full((len(of_rows), len(of_columns)), np.nan)
    for point in sweep.points:
        found[of_rows.index(point.values[rows]), of_columns.index(point.values[columns])] = point.accuracy
    return of_rows, of_columns, found


def heat_map(sweep: Sweep, rows: str, columns: str) -> "Figure":
    """Draw the accuracy for each combination of two parameters; the best one has a frame.

    Raises InputError for what ``accuracy_table`` refuses, and where no notebook finished.
    """
    from matplotlib.patches import Rectangle

    of_rows, of_columns, found = accuracy_table(sweep, rows, columns)
    best = sweep.best
    assert best.result is not None
    split = best.result["split"]
    alt = (
        f"Heat map of the {split} accuracy over {rows} and {columns}; the highest, {best.accuracy:.1%}, is "
        f"at {best.name}"
    )
    with styled():
        figure = new_figure(2.6 + 1.3 * len(of_columns), 1.4 + 0.75 * len(of_rows), alt)
        axis = figure.subplots()
        low, high = np.nanmin(found), np.nanmax(found)
        image = axis.imshow(found * 100, cmap="cividis", aspect="auto")
        axis.set_xticks(range(len(of_columns)), [f"{value}" for value in of_columns])
        axis.set_yticks(range(len(of_rows)), [f"{value}" for value in of_rows])
        axis.set(xlabel=columns.replace("_", " "), ylabel=rows.replace("_", " "))
        axis.set_title(f"{split} accuracy (%)".capitalize())
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        for (row, column), value in np.ndenumerate(found):
            text = "failed" if np.isnan(value) else f"{value:.1%}"
            dark = not np.isnan(value) and value - low < 0.5 * (high - low)
            axis.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
        place = (of_columns.index(best.values[columns]) - 0.47, of_rows.index(best.values[rows]) - 0.47)
        axis.add_patch(Rectangle(place, 0.94, 0.94, fill=False, edgecolor=MARK, linewidth=2.5))
        figure.colorbar(image, ax=axis, label="%")
    return figure


def loss_curves(losses: dict[str, np.ndarray], *, smoothing: int = 5) -> "Figure":
    """Draw training losses over steps.

    Args:
        losses: [steps] by the name of the run.
        smoothing: steps of which each point is the mean, where there are as many before it.
    """
    styles = ("-", "--", "-.", ":")
    with styled():
        alt = f"Training loss over steps of {', '.join(losses)}"
        figure = new_figure(7.0, 4.0, alt)
        axis = figure.subplots()
        for number, (name, values) in enumerate(losses.items()):
            sums = np.cumsum(values)
            width = np.minimum(np.arange(1, len(values) + 1), smoothing)
            before = np.concatenate([np.zeros(smoothing), sums])[: len(values)]
            axis.plot(
                np.arange(1, len(values) + 1),
                (sums - before) / width,
                styles[number % len(styles)],
                color=OKABE_ITO[number % len(OKABE_ITO)],
                label=name,
            )
        axis.grid(axis="y")
        axis.set(xlabel="step", ylabel=f"training loss (nats), mean of {smoothing} steps")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
