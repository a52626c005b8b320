"""The charts of a report: boards as the dashboard draws them, with all points up to a limit."""

import base64
import gzip
from collections.abc import Sequence

from app.charts.board import PALETTE, Chart, encode
from app.charts.machine import MachineStore, machine_charts
from app.charts.metric_charts import STANDARD, Options, look_of, metric_chart, metric_lines, seams_of
from app.charts.store import SPLITS, CurveStore, Snapshot
from app.report.markup import escaped, note
from labkit.run_directory import RunDirectory

__all__ = ["MAX_POINTS", "board_html", "comparison_charts", "machine_board", "read_metrics", "run_board"]

# Of all lines of one board. A point takes some 10 bytes of the file, and a browser draws 600,000 of them in
# less than three seconds.
MAX_POINTS = 500_000

MAX_CHARTS = 24
OPTIONS = Options(axis="step", smoothing=0.6)
LEFT_OUT = ("examples", "seconds", "worker")  # that say nothing as a curve


def read_metrics(run: RunDirectory) -> Snapshot:
    """Return the metrics of a run. Raises OSError for an unreadable file."""
    return CurveStore(run.metrics_path).poll()


def run_board(name: str, metrics: Snapshot) -> str:
    """Return the charts of one run as HTML; a sentence if it has no metrics."""
    added = [value for value in metrics.metrics() if value not in (*STANDARD, *LEFT_OUT)]
    charts = [metric_chart(metrics, value, OPTIONS) for value in (*STANDARD, *added)]
    charts = [chart for chart in charts if chart.lines and any(len(line.x) for line in chart.lines)]
    if not charts:
        return note("The run has no metrics yet.")
    return board_html(charts, name, metrics)


def comparison_charts(runs: Sequence[tuple[str, Snapshot]]) -> list[Chart]:
    """Return a chart for each metric of each split, with a line for each of the runs by their names."""
    names = dict.fromkeys(name for _, metrics in runs for name in metrics.metrics())
    order = [name for name in (*STANDARD, *names) if name in names and name not in LEFT_OUT]
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
        machine = MachineStore(run).poll()
    except OSError:
        return ""
    charts = machine_charts(machine, metrics, OPTIONS.axis)
    return board_html(charts, f"{run.name} machine", None) if charts else ""


def board_html(charts: Sequence[Chart], name: str, metrics: Snapshot | None) -> str:
    """Return a board as HTML. The points are in it, compressed; the report's script draws them.

    Args:
        charts: over the steps.
        name: pictures are saved under it.
        metrics: of the run whose resume points are marked; None: none are.
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
    left = [] if len(charts) <= MAX_CHARTS else [f"Of {len(charts)} charts the first {MAX_CHARTS} are drawn."]
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
