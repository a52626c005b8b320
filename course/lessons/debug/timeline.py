"""The profiler's trace of some training steps as a timeline: which thread ran which operation when."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from labkit.experiments.profile import KINDS, kind_of, read_trace
from labkit.figures.style import OKABE_ITO, drawing

COLORS = dict(
    zip(KINDS, (*OKABE_ITO[:6], "#f0e442", "#9467bd", "#000000", "#8c564b", "#c7cbd1"), strict=True)
)


class Span(NamedTuple):
    """An operation that ran. ``start`` and ``seconds``: in seconds, from the first operation of the trace."""

    thread: int
    name: str
    kind: str
    start: float
    seconds: float


def operations(run: Path) -> list[Span]:
    """Return the operations in the newest trace of a run, by start."""
    found = sorted(_operations(read_trace(run / "events")), key=lambda span: span[2])
    first = found[0][2]
    threads = {line: number for number, line in enumerate(dict.fromkeys(span[0] for span in found))}
    return [
        Span(threads[line], name, kind_of(name.rpartition(":")[2]), (start - first) / 1e12, duration / 1e12)
        for line, name, start, duration in found
    ]


def _operations(space: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield thread, name, start and duration in picoseconds; input threads are left out."""
    for plane in space.planes:
        for line in plane.lines:
            if line.name.startswith("tf_data"):
                continue
            for event in line.events:
                about = plane.event_metadata[event.metadata_id]
                if about.display_name and about.name.endswith(f":{about.display_name}"):
                    yield line.name, about.name, line.timestamp_ns * 1000 + event.offset_ps, event.duration_ps


def seconds_by_kind(spans: list[Span]) -> Counter[str]:
    """Return the time of the operations of each kind, in seconds, summed over the threads."""
    found: Counter[str] = Counter()
    for span in spans:
        found[span.kind] += span.seconds  # type: ignore[assignment]
    return found


def draw_timeline(spans: list[Span]) -> Figure:
    """Draw the operations of each thread over time, coloured by their kind."""
    threads = max(span.thread for span in spans) + 1
    totals = seconds_by_kind(spans)
    with drawing(9.5, 2.2 + 0.35 * threads, "Operations of each thread over time, by kind") as figure:
        axis = figure.subplots()
        for kind in filter(totals.__contains__, KINDS):
            chosen = [span for span in spans if span.kind == kind]
            for thread in range(threads):
                bars = [(1e3 * span.start, 1e3 * span.seconds) for span in chosen if span.thread == thread]
                axis.broken_barh(bars, (thread - 0.4, 0.8), color=COLORS[kind])
            axis.plot([], [], "s", color=COLORS[kind], label=f"{kind} ({1e3 * totals[kind]:.0f} ms)")
        axis.set_yticks(range(threads), [f"thread {number + 1}" for number in range(threads)])
        axis.set_title("Traced steps (in brackets: time, summed over the threads)")
        axis.set_xlabel("milliseconds since the first operation of the trace")
        figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
