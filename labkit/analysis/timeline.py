"""``labkit trace``: what all workers of a cluster did in the same steps, on one time axis.

Clocks of hosts differ by milliseconds to seconds. Synchronous workers end each exchange of gradients at the
same moment, so the exchanges themselves align their clocks. An asynchronous worker's clock is aligned by the
report that was shortest under way to the coordinator.
"""

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import StepSpans, read_spans

__all__ = ["Span", "Timeline", "read_timeline", "write_trace"]

KINDS = ("input", "compute", "wait", "exchange", "rest")


@dataclass(frozen=True)
class Span:
    """A part of a step. ``begin`` and ``end``: seconds on the common axis. ``kind``: one of ``KINDS``."""

    worker: str
    step: int
    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The last steps of all workers.

    ``spans``: in order of the workers, the steps and the time. ``offsets``: by worker, the seconds that were
    added to its clock. ``has_exchanges``: False for runs with ``--deterministic``, which measure none.
    """

    spans: tuple[Span, ...]
    offsets: dict[str, float]
    has_exchanges: bool

    @property
    def steps(self) -> list[int]:
        """The steps that are in it, ascending."""
        return sorted({span.step for span in self.spans})

    def seconds(self, worker: str) -> dict[str, float]:
        """Return the mean seconds of a step of a worker that went into each kind."""
        mine = [span for span in self.spans if span.worker == worker]
        count = len({span.step for span in mine})
        return {
            kind: sum(span.end - span.begin for span in mine if span.kind == kind) / count for kind in KINDS
        }


def read_timeline(run: RunDirectory, steps: int) -> Timeline:
    """Return the last steps of a cluster's run, of at most fifty that each worker keeps.

    Args:
        run: the run directory.
        steps: how many; of synchronous workers those that all of them have made.

    Raises InputError if there are none.
    """
    workers = {name: spans for name, spans in read_spans(run.cluster_path).items() if spans}
    if not workers:
        raise InputError(
            f"{run.path} has no times of its workers' steps, which only clusters record; for one process see "
            "labkit profile"
        )
    asynchronous = any(each.seen is not None for spans in workers.values() for each in spans)
    made = {name: {each.step for each in spans} for name, spans in workers.items()}
    common = set.union(*made.values()) if asynchronous else set.intersection(*made.values())
    if not common:
        raise InputError(f"the workers of {run.path} have no step in common yet; try again in a second")
    chosen = sorted(common)[-steps:]
    kept = {name: [each for each in spans if each.step in chosen] for name, spans in workers.items()}
    kept = {name: spans for name, spans in kept.items() if spans}
    offsets = _by_reports(kept) if asynchronous else _by_exchanges(kept)
    spans = [span for name in kept for each in kept[name] for span in _spans(name, each, offsets[name])]
    has_exchanges = any(span.kind == "exchange" for span in spans)
    return Timeline(tuple(spans if asynchronous else _with_waits(spans)), offsets, has_exchanges)


def _by_exchanges(workers: Mapping[str, Sequence[StepSpans]]) -> dict[str, float]:
    """Return the offsets that let the exchanges of a step, or else its end, end at one moment."""

    def common_moment(spans: StepSpans) -> float:
        ends = dict(spans.ends)
        return ends.get("exchange", spans.ends[-1][1])

    moments = {name: {each.step: common_moment(each) for each in spans} for name, spans in workers.items()}
    first = next(iter(moments.values()))
    return {
        name: median(first[step] - moment for step, moment in mine.items() if step in first)
        for name, mine in moments.items()
    }


def _by_reports(workers: Mapping[str, Sequence[StepSpans]]) -> dict[str, float]:
    """Return the offsets to the coordinator's clock: of the report that was shortest under way."""
    return {
        name: min(each.seen - each.ends[-1][1] for each in spans if each.seen is not None)
        for name, spans in workers.items()
    }


def _spans(worker: str, spans: StepSpans, offset: float) -> list[Span]:
    begin, found = spans.began, []
    for kind, end in spans.ends:
        found.append(Span(worker, spans.step, kind, begin + offset, max(begin, end) + offset))
        begin = max(begin, end)
    return found


def _with_waits(spans: Sequence[Span]) -> list[Span]:
    """Divide each exchange: until the last worker has begun it, the others wait."""
    last: dict[int, float] = {}
    for span in spans:
        if span.kind == "exchange":
            last[span.step] = max(last.get(span.step, span.begin), span.begin)
    divided = []
    for span in spans:
        if span.kind != "exchange":
            divided.append(span)
            continue
        middle = min(span.end, last[span.step])
        divided.append(Span(span.worker, span.step, "wait", span.begin, middle))
        divided.append(Span(span.worker, span.step, "exchange", middle, span.end))
    return divided


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write the timeline as Chrome's trace, which Perfetto reads; compressed if ``path`` ends in gz."""
    text = json.dumps({"traceEvents": _events(timeline), "displayTimeUnit": "ms"})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.suffix == ".gz":
            with gzip.open(temporary, "wt", encoding="utf-8") as file:
                file.write(text)
        else:
            temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _events(timeline: Timeline) -> list[dict[str, Any]]:
    origin = min(span.begin for span in timeline.spans)
    numbers = {name: number for number, name in enumerate(timeline.offsets, start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
        for name, number in numbers.items()
    ]
    steps: dict[tuple[str, int], tuple[float, float]] = {}
    for span in timeline.spans:
        begin, end = steps.get((span.worker, span.step), (span.begin, span.end))
        steps[span.worker, span.step] = min(begin, span.begin), max(end, span.end)

    def event(name: str, worker: str, step: int, begin: float, end: float) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": name,
            "pid": numbers[worker],
            "tid": 1,
            "ts": 1e6 * (begin - origin),
            "dur": 1e6 * (end - begin),
            "args": {"step": step},
        }

    # A step comes before its parts, which lie within it on the same row.
    events += [event(f"step {step}", worker, step, *times) for (worker, step), times in steps.items()]
    events += [event(each.kind, each.worker, each.step, each.begin, each.end) for each in timeline.spans]
    return events
