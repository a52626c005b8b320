"""What TensorBoard shows of a run, read with TensorBoard's own reader and drawn as figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from labkit.figures.style import GREY, OKABE_ITO, TRAIN, VALIDATION, drawing

Array = NDArray[np.float64]
SHOWN = (0, 7, 31, 50, 69, 93, 100)  # percentiles, of those on TensorBoard's page
BANDS = ("#d6e6f2", "#a6cbe3", "#6ea8d0")  # from the widest to the narrowest
FLOAT32_MAX = 3.4028235e38


class Histogram(NamedTuple):
    """Counts of values at one step. ``edges``: float64 [buckets + 1]; ``counts``: float64 [buckets]."""

    step: int
    edges: Array
    counts: Array


class EventFiles:
    """The event files of a run.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        every = {"scalars": 0, "tensors": 0}  # 0: keep all points; TensorBoard itself keeps some
        self._readers = [
            EventAccumulator(str(folder), size_guidance=every).Reload()
            for folder in (run / "events", run / "events" / "extras")
            if folder.is_dir()
        ]

    def tags(self) -> dict[str, list[str]]:
        """Return the names of what the files hold: ``scalars``, ``tensors`` (histograms and images)."""
        tags = [reader.Tags() for reader in self._readers]
        return {kind: [tag for each in tags for tag in each[kind]] for kind in ("scalars", "tensors")}

    def scalar(self, tag: str) -> tuple[Array, Array]:
        """Return steps and values of a scalar, float64 [points] each. Raises KeyError for an unknown tag."""
        points = self._reader("scalars", tag).Scalars(tag)
        return np.array([p.step for p in points], float), np.array([p.value for p in points], float)

    def histograms(self, tag: str) -> list[Histogram]:
        """Return the histograms of a tag, one for each step. Raises KeyError for an unknown tag."""
        from tensorboard.util.tensor_util import make_ndarray

        result = []
        for event in self._reader("tensors", tag).Tensors(tag):
            left, right, counts = make_ndarray(event.tensor_proto).astype(np.float64).T
            result.append(Histogram(event.step, np.append(left, right[-1:]), counts))
        return result

    def images(self, tag: str) -> NDArray[np.uint8]:
        """Return the images of the first step of a tag, uint8 [n, height, width, channels]."""
        import tensorflow as tf

        _width, _height, *encoded = self._reader("tensors", tag).Tensors(tag)[0].tensor_proto.string_val
        return np.stack([tf.io.decode_png(data).numpy() for data in encoded])

    def graph_boxes(self) -> Counter[str]:
        """Return the number of operations in each outer box of the graph of the training step, if over 1."""
        graphs = [reader.Graph() for reader in self._readers if reader.Tags()["graph"]]
        found = Counter(
            node.name.split("/")[0] for graph in graphs for node in graph.node if "/" in node.name
        )
        return Counter({name: count for name, count in found.items() if count > 1})

    def _reader(self, kind: str, tag: str) -> Any:
        for reader in self._readers:
            if tag in reader.Tags()[kind]:
                return reader
        raise KeyError(f"no {kind} named {tag!r} in the event files")


def percentiles(histogram: Histogram, shown: Sequence[float] = SHOWN) -> Array:
    """Return percentiles of the values that a histogram counts, float64 [len(shown)].

    Values are assumed to be spread evenly in each bucket, as TensorBoard does.
    """
    total = np.concatenate([[0.0], np.cumsum(histogram.counts)])
    return np.interp(np.asarray(shown) / 100 * total[-1], total, histogram.edges)


def draw_scalars(events: EventFiles, classes: int, looked_at: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the loss, and the speed with the steps at which something was recorded.

    Args:
        classes: of the data set; a network that knows nothing has the loss ln(classes).
        looked_at: steps by what was recorded at them.
    """
    with drawing(9.5, 3.2, "Training loss over steps, and images per second over steps") as figure:
        left, right = figure.subplots(1, 2)
        left.plot(*events.scalar("train/loss"), color=TRAIN, label="training loss")
        left.axhline(np.log(classes), color=GREY, linestyle="--", label=f"ln {classes}: knows nothing")
        left.set(title="train/loss", xlabel="step", ylabel="loss (nats)")
        steps, speed = events.scalar("train/examples_per_second")
        right.plot(steps, speed, color=TRAIN)
        for number, (what, marked) in enumerate(looked_at.items(), 1):
            there = np.isin(steps, marked)
            right.plot(steps[there], speed[there], "o", color=OKABE_ITO[number], label=what)
        right.set(title="train/examples_per_second", xlabel="step", ylabel="images per second")
        right.set_ylim(bottom=0)
        for axis in (left, right):
            axis.grid(axis="y")
            axis.legend()
    return figure


def draw_distributions(events: EventFiles, tags: Sequence[str]) -> Figure:
    """Draw the percentiles of each tag's values over the steps, as TensorBoard's page Distributions."""
    with drawing(9.5, 3.2, f"Percentiles over steps of {', '.join(tags)}") as figure:
        for axis, tag in zip(figure.subplots(1, len(tags), squeeze=False).flat, tags, strict=True):
            found = events.histograms(tag)
            steps = [histogram.step for histogram in found]
            lines = np.array([percentiles(histogram) for histogram in found]).T
            middle = len(lines) // 2
            for number, color in zip(range(middle), BANDS, strict=True):
                label = f"{SHOWN[number]} to {SHOWN[-1 - number]} % of the values"
                axis.fill_between(steps, lines[number], lines[-1 - number], color=color, lw=0, label=label)
            axis.plot(steps, lines[middle], color=TRAIN, marker=".", label="median")
            kind, _, name = tag.partition("/")
            axis.set(title=f"{kind}\n{name}", xlabel="step")
        figure.axes[0].set_ylabel("value")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_histograms(events: EventFiles, tags: Sequence[str], step: int) -> Figure:
    """Draw the histogram of each tag at an inspected step, on the axes of all steps."""
    with drawing(9.5, 2.6, f"Histograms at step {step} of {', '.join(tags)}") as figure:
        for axis, tag in zip(figure.subplots(1, len(tags), squeeze=False).flat, tags, strict=True):
            every = events.histograms(tag)
            edges, counts = next((h.edges, h.counts) for h in every if h.step == step)
            width = np.maximum(np.diff(edges), 1e-12)
            axis.stairs(counts / counts.sum() / width, edges, fill=True, color=VALIDATION, alpha=0.8)
            axis.set(title=tag.partition("/")[2], xlabel="value")
            axis.set_xlim(min(h.edges[0] for h in every), max(h.edges[-1] for h in every))
        figure.axes[0].set_ylabel("density")
        figure.suptitle(f"{tags[0].partition('/')[0]} at step {step}", fontsize=9, x=0.99, ha="right")
    return figure


def draw_layer_spread(rows: Sequence[Any]) -> Figure:
    """Draw the standard deviation of each layer's outputs at some steps, with a mark where it isn't finite.

    Args:
        rows: ``LayerRow`` of ``layers.jsonl``.
    """
    with drawing(9.5, 4.0, "Standard deviation of the outputs of each layer at each step") as figure:
        axis = figure.subplots()
        for color, row in zip(OKABE_ITO, rows, strict=False):
            spread = np.array(row.values["activation_std"], float)
            finite = np.isfinite(spread)
            drawn: dict[str, Any] = {"color": color, "label": f"step {row.step}"}
            axis.plot(np.where(finite, spread, np.nan), "o-", markersize=4, **drawn)
            axis.plot(np.where(finite, np.nan, FLOAT32_MAX), "x", color=color, markersize=7)
        for value, style, text, place, va in (
            (FLOAT32_MAX, "--", "largest float32; × is Infinity", 1e-3, "top"),
            (FLOAT32_MAX**0.5, ":", "above this line, a square is Infinity", 1, "bottom"),
        ):
            axis.axhline(value, color=GREY, linestyle=style, linewidth=1)
            axis.text(0, value * place, text, color=GREY, fontsize=8, va=va)
        axis.set_yscale("log")
        axis.set_xticks(range(len(rows[0].layers)), rows[0].layers, rotation=90, fontsize=7)
        axis.set(ylabel="standard deviation", title="Outputs of the layers, from the first to the last")
        axis.legend(loc="center", bbox_to_anchor=(0.5, 0.72), ncols=len(rows))
    return figure
