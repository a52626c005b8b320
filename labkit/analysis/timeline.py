"""``labkit trace``: what all workers of a cluster did in the same steps, on one time axis.

Clocks of hosts differ by milliseconds to seconds. Synchronous workers end each exchange of gradients at the
same moment, so the exchanges themselves align their clocks. An asynchronous worker's clock is aligned by the
report that was shortest under way to the coordinator.
"""

import gzip
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing
from labkit.run_directory.worker_metrics import StepSpans, read_spans

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
    reported = {name for name, spans in workers.items() if any(each.seen is not None for each in spans)}
    if asynchronous := bool(reported):  # files without reports are left of an earlier, synchronous session
        workers = {name: workers[name] for name in reported}
    made = {name: {each.step for each in spans} for name, spans in workers.items()}
    common = set.union(*made.values()) if asynchronous else set.intersection(*made.values())
    if not common:
        raise InputError(f"the workers of {run.path} have no step in common yet; try again in a second")
    chosen = sorted(common)[-steps:]
    kept = {name: [each for each in spans if each.step in chosen] for name, spans in workers.items()}
    kept = {name: spans for name, spans in kept.items() if spans}
    offsets = _by_reports(workers) if asynchronous else _by_exchanges(workers)  # of all steps: more exact
    offsets = {name: offsets[name] for name in kept}
    spans = [span for name in kept for each in kept[name] for span in _spans(name, each, offsets[name])]
    has_exchanges = any(span.kind == "exchange" for span in spans)
    with_waits = _with_waits_between if asynchronous else _with_waits_within
    return Timeline(tuple(with_waits(spans)), offsets, has_exchanges)


def _by_exchanges(workers: Mapping[str, Sequence[StepSpans]]) -> dict[str, float]:
    """Return the offsets that let the exchanges of a step, or else its end, end at one moment."""
    moments = {
        name: {each.step: dict(each.ends).get("exchange", each.ends[-1][1]) for each in spans}
        for name, spans in workers.items()
    }
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


def _with_waits_between(spans: Sequence[Span]) -> list[Span]:
    """Add what an asynchronous worker waits for its next batch."""
    found: list[Span] = []
    for span in spans:
        before = found[-1] if found else None
        if before and before.worker == span.worker and before.step != span.step and before.end < span.begin:
            found.append(Span(span.worker, span.step, "wait", before.end, span.begin))
        found.append(span)
    return found


def _with_waits_within(spans: Sequence[Span]) -> list[Span]:
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
        if middle > span.begin:
            divided.append(Span(span.worker, span.step, "wait", span.begin, middle))
        divided.append(Span(span.worker, span.step, "exchange", middle, span.end))
    return divided


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write the timeline into a file whose ending, one of ``FORMATS``, says the format."""
    make = next(make for end, make in FORMATS.items() if path.name.endswith(end))
    with replacing(path) as temporary:
        temporary.write_bytes(make(timeline))


def _boxes(timeline: Timeline, worker: str) -> list[tuple[str, int, float, float]]:
    """Return name, step, begin and length of what is drawn for a worker, in seconds from the first begin.

    A step comes before its parts, which lie within it on the same row.
    """
    origin = min(span.begin for span in timeline.spans)
    mine = [span for span in timeline.spans if span.worker == worker]
    found = []
    for step, spans in itertools.groupby(mine, key=lambda span: span.step):
        parts = [(span.kind, step, span.begin - origin, span.end - span.begin) for span in spans]
        begin, end = parts[0][2], parts[-1][2] + parts[-1][3]
        found += [(f"step {step}", step, begin, end - begin), *parts]
    return found


def _json(timeline: Timeline) -> bytes:
    """Return Chrome's trace format, in microseconds."""
    events: list[dict[str, Any]] = []
    for number, worker in enumerate(timeline.offsets, start=1):
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": worker}})
        events += [
            {"ph": "X", "name": name, "pid": number, "tid": 1, "ts": 1e6 * begin, "dur": 1e6 * length,
             "args": {"step": step}}
            for name, step, begin, length in _boxes(timeline, worker)
        ]  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()


def _xspace(timeline: Timeline) -> bytes:
    """Return TensorFlow's trace format (tensorflow/tsl/profiler/protobuf/xplane.proto), in picoseconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace(hostnames=["cluster"])
    for number, worker in enumerate(timeline.offsets, start=1):
        # TensorBoard shows planes whose names begin like this.
        plane = space.planes.add(id=number, name=f"/device:CUSTOM:{worker}")
        line = plane.lines.add(id=1, name="steps")
        names: dict[str, int] = {}
        for name, _, begin, length in _boxes(timeline, worker):
            if name not in names:
                names[name] = len(names) + 1
                plane.event_metadata[names[name]].MergeFrom(
                    xplane_pb2.XEventMetadata(id=names[name], name=name)
                )
            line.events.add(
                metadata_id=names[name], offset_ps=round(1e12 * begin), duration_ps=round(1e12 * length)
            )
    return space.SerializeToString()


FORMATS: Mapping[str, Callable[[Timeline], bytes]] = {
    ".json": _json,
    ".json.gz": lambda timeline: gzip.compress(_json(timeline)),
    ".xplane.pb": _xspace,
}
