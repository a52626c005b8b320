"""The figures of a sweep: accuracy over two parameters, and the training losses."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import InputError
from labkit.notebook.plots.style import MARK, OKABE_ITO, new_figure, styled
from labkit.notebook.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_table", "heat_map", "loss_curves"]


def accuracy_table(sweep: Sweep, rows: str, columns: str) -> tuple[list[object], list[object], np.ndarray]:
    """Return the values of two parameters and the accuracies, float64 [row, column], NaN without a result.

    Where the sweep varies other parameters too, such as the seed, each accuracy is the mean over them.

    Raises InputError for a parameter that the sweep doesn't vary.
    """
    names = list(sweep.points[0].values)
    for name in (rows, columns):
        if name not in names:
            raise InputError(f"the sweep doesn't vary {name}; it varies {', '.join(names)}")
    of_rows = list(dict.fromkeys(point.values[rows] for point in sweep.points))
    of_columns = list(dict.fromkeys(point.values[columns] for point in sweep.points))
    sums, runs = np.zeros((2, len(of_rows), len(of_columns)))
    for point in sweep.ranked:
        place = of_rows.index(point.values[rows]), of_columns.index(point.values[columns])
        sums[place] += point.accuracy
        runs[place] += 1
    return of_rows, of_columns, np.where(runs, sums / np.maximum(runs, 1), np.nan)


def heat_map(sweep: Sweep, rows: str, columns: str) -> "Figure":
    """Draw the accuracy for each combination of two parameters; the highest one has a frame.

    Raises InputError for what ``accuracy_table`` refuses, and where no notebook finished.
    """
    from matplotlib.patches import Rectangle

    of_rows, of_columns, found = accuracy_table(sweep, rows, columns)
    assert sweep.best.result is not None
    split = sweep.best.result["split"]
    row, column = np.unravel_index(np.nanargmax(found), found.shape)
    alt = (
        f"Heat map of the {split} accuracy over {rows} and {columns}; the highest, {found[row, column]:.1%}, "
        f"is at {rows} {of_rows[row]}, {columns} {of_columns[column]}"
    )
    each = len(sweep.points) // found.size
    with styled():
        figure = new_figure(2.6 + 1.3 * len(of_columns), 1.4 + 0.75 * len(of_rows), alt)
        axis = figure.subplots()
        image = axis.imshow(found * 100, cmap="cividis", aspect="auto")
        axis.set_xticks(range(len(of_columns)), [f"{value}" for value in of_columns])
        axis.set_yticks(range(len(of_rows)), [f"{value}" for value in of_rows])
        axis.set(xlabel=columns.replace("_", " "), ylabel=rows.replace("_", " "))
        axis.set_title(f"{split} accuracy (%)".capitalize() + (f", mean of {each} runs" if each > 1 else ""))
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        _write_values(axis, found)
        frame = (column - 0.47, row - 0.47)
        axis.add_patch(Rectangle(frame, 0.94, 0.94, fill=False, edgecolor=MARK, linewidth=2.5))
        figure.colorbar(image, ax=axis, label="%")
    return figure


def _write_values(axis: "Axes", found: np.ndarray) -> None:
    middle = (np.nanmin(found) + np.nanmax(found)) / 2
    for (row, column), value in np.ndenumerate(found):
        text = "failed" if np.isnan(value) else f"{value:.1%}"
        color = "white" if value < middle else "black"  # black on the white of a NaN
        axis.text(column, row, text, ha="center", va="center", color=color)


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
        axis.set(xlabel="step", ylabel=f"training loss (nats), mean of the last {smoothing} steps")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
