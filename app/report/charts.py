"""The charts of a report, with all points up to a limit, and its confusion matrix and mistakes."""

import base64
import gzip
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from app.charts.board import PALETTE, Chart, encode
from app.charts.machine import MachineStore, machine_charts
from app.charts.metric_charts import Options, look_of, metric_chart, metric_lines, seams_of, standard
from app.charts.store import SPLITS, Snapshot
from app.images import cards
from app.markup import escaped, table_html
from app.report.parts import note, section
from labkit.analysis.predictions import Predictions, load_predictions, of_another_checkpoint
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

# Of all lines of one board. A point takes some 10 bytes of the file, and a browser draws 600,000 of them in
# less than three seconds.
MAX_POINTS = 500_000

MAX_CHARTS = 24
OPTIONS = Options(axis="step", smoothing=0.6)
LEFT_OUT = ("examples", "seconds", "worker")  # that say nothing as a curve


def run_board(name: str, metrics: Snapshot) -> str:
    """Return the charts of one run as HTML; a sentence if it has no metrics."""
    usual = standard(metrics.metrics())
    added = [value for value in metrics.metrics() if value not in (*usual, *LEFT_OUT)]
    charts = [metric_chart(metrics, value, OPTIONS) for value in (*usual, *added)]
    charts = [chart for chart in charts if chart.lines and any(len(line.x) for line in chart.lines)]
    if not charts:
        return note("The run has no metrics yet.")
    return board_html(charts, name, metrics)


def comparison_charts(runs: Sequence[tuple[str, Snapshot]]) -> list[Chart]:
    """Return a chart for each metric of each split, with a line for each of the runs by their names."""
    names = dict.fromkeys(name for _, metrics in runs for name in metrics.metrics())
    order = [name for name in (*standard(names), *names) if name in names and name not in LEFT_OUT]
    charts = []
    for value in dict.fromkeys(order):
        for split in SPLITS:
            lines = [
                line
                for number, (name, metrics) in enumerate(runs)
                for line in metric_lines(
                    metrics, split, value, name, PALETTE[number % len(PALETTE)], OPTIONS, raw=False
                )
                if len(line.x)
            ]
            if any(len(line.x) > 1 for line in lines):  # single results are in a table
                look = look_of(value)
                charts.append(Chart(f"{split}-{value}", f"{look.title}, {split}", lines, look.unit))
    return charts


def machine_board(run: RunDirectory, metrics: Snapshot) -> str:
    """Return the charts of what the run took of its machines; nothing if that wasn't recorded."""
    try:
        machine = MachineStore(run.path).poll()
    except OSError:
        return ""
    charts = machine_charts(machine, metrics, OPTIONS.axis)
    return board_html(charts, f"{run.name} machine", None, smooth=False) if charts else ""


def board_html(charts: Sequence[Chart], name: str, metrics: Snapshot | None, smooth: bool = True) -> str:
    """Return a board as HTML. The points are in it, compressed; the report's script draws them.

    Args:
        charts: over the steps.
        name: pictures are saved under it.
        metrics: of the run whose resume points are marked; None: none are.
        smooth: whether curves of the training are smoothed.
    """
    shown = charts[:MAX_CHARTS]
    most = _most_points([len(line.x) for chart in shown for line in chart.lines])
    data = encode(
        shown,
        axis="step",
        x_title="Step",
        seams=seams_of(metrics, OPTIONS) if metrics else (),
        name=name,
        height=240,
        points=most,
    )
    text = base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
    left = [OPTIONS.smoothing_in_words] if smooth else []
    left += [f"Of {len(charts)} charts the first {MAX_CHARTS} are drawn."] if len(charts) > MAX_CHARTS else []
    if any(len(line.x) > most for chart in shown for line in chart.lines):
        left.append(
            f"The charts hold at most {MAX_POINTS:,} points: longer curves are drawn from the lowest and the "
            "highest value of short intervals, so that every peak is kept."
        )
    said = f'<p class="said">{escaped(" ".join(left))}</p>' if left else ""
    return f'<div class="board"></div><script type="text/plain" class="points">{text}</script>{said}'


def _most_points(lengths: list[int]) -> int:
    """Return how many points a line may have, so that all have no more than ``MAX_POINTS`` together."""
    left, most = MAX_POINTS, max(lengths, default=1)
    if sum(lengths) <= left:
        return max(most, 2)
    for place, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - place)
        if length > share:
            return max(share, 100)
        left -= length
    raise AssertionError("some line is longer than its share")


MISTAKES = 24
MOST_PIXELS = 160  # of each side of an image: its card is as wide
MAX_CLASSES = 30  # of a matrix that is shown whole
MOST_FREQUENT = 20  # confusions that are listed for more classes


def predictions_html(run: RunDirectory) -> str:
    """Return the predictions for the test split as HTML; nothing if the run has none."""
    try:
        predictions = load_predictions(run)
    except FileNotFoundError:
        return ""
    except InputError as error:
        return section("Predictions", note(f"{error}"), 3)
    if predictions.are_numbers:
        first, title = predictions.worst_first[:MISTAKES], "The largest errors on the test split"
    else:
        first = predictions.select(wrong_only=True)[:MISTAKES]
        title = f"The {counted(len(first), 'most confident mistake')} on the test split"
    part = replace(
        predictions,
        images=cards.shrunk(predictions.images[first], MOST_PIXELS, Image.Resampling.LANCZOS),
        labels=predictions.labels[first],
        probabilities=predictions.probabilities[first],
        index=predictions.index[first],
    )
    shown = cards.prediction_cards(part, range(len(first)), note=lambda place: f"#{part.index[place]}", top=3)
    grid = cards.grid(shown, 152).replace(' loading="lazy"', "")
    other = of_another_checkpoint(run, predictions)
    said = note(f"{other[0].upper()}{other[1:]}.") if other else ""
    return said + _confusion(predictions) + (section(title, grid, 3) if len(first) else "")


def _confusion(predictions: Predictions) -> str:
    """Return the confusion matrix; of many classes the most frequent confusions."""
    classes = predictions.classes
    if predictions.targets != "class" or not len(predictions):
        return ""
    if len(classes) > MAX_CLASSES:
        rows = [
            (classes[true], classes[given], f"{count:,}")
            for true, given, count in predictions.most_confused(MOST_FREQUENT)
        ]
        return section(
            "The most frequent confusions on the test split",
            table_html(("True", "Predicted", "Images"), rows),
            3,
        )
    counts = predictions.confusion
    assert counts is not None
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = counts / totals
    head = "".join(f'<th scope="col"><span>{escaped(name)}</span></th>' for name in classes)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>'
        + "".join(
            _cell(int(counts[true, given]), float(shares[true, given])) for given in range(len(classes))
        )
        + "</tr>"
        for true, name in enumerate(classes)
    )
    matrix = (
        '<div class="lk-rows"><table class="confusion"><caption>Rows: true class. Columns: predicted class. '
        f"The colour of a cell is its share of the row.</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
    return section("Confusion matrix of the test split", matrix, 3)


def _cell(count: int, share: float) -> str:
    # From one half on, the text is white. Between 0.5 and 0.8 no text would have a contrast of 4.5.
    strong, shown = (' class="strong"', 0.6 + 0.4 * share) if share > 0.5 else ("", share)
    return f'<td{strong} style="--share:{shown:.3f}">{count or ""}</td>'
