"""Schedules of a pipeline: what each stage does in which order, when, and how much it keeps meanwhile.

A schedule has a list for each stage, with pairs in the order of the work: ``("F", m)`` is the forward pass of
micro-batch m, and ``("B", m)`` its backward pass.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course.lessons import figures
from course.lessons.workers import Span
from labkit.analysis import timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PASSES = {"F": "forward pass", "B": "backward pass"}
Schedule = Sequence[Sequence[tuple[str, int]]]


def one_forward_one_backward(stages: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """Return the schedule 1F1B (Harlap and others, 2018; as here Narayanan and others, 2021).

    Stage s computes p − s forward passes, then one backward and one forward pass in turn.
    """
    schedule = []
    for stage in range(stages):
        ahead = min(stages - stage, micro_batches)
        work = [("F", m) for m in range(ahead)]
        for m in range(micro_batches):
            work.append(("B", m))
            if ahead + m < micro_batches:
                work.append(("F", ahead + m))
        schedule.append(work)
    return schedule


def simulate(schedule: Schedule, forward: Sequence[float], backward: Sequence[float]) -> list[Span]:
    """Return when each stage does what if messages take no time.

    A stage begins a pass when it has ended the one before and the pass that this one needs has ended: the
    forward pass of the stage before, or the backward pass of the stage behind. ``forward``, ``backward``:
    seconds of a pass on each stage. Raises ValueError, which says who waits for what, if the work never ends.
    """
    last, free = len(schedule) - 1, [0.0] * len(schedule)
    ends = {("F", m, -1): 0.0 for _, m in schedule[0]}  # stage 0 has all images
    left = [list(work) for work in schedule]
    spans: list[Span] = []
    while any(left):
        done = len(spans)
        for stage, work in enumerate(left):
            while work:
                kind, m = work[0]
                needed = (kind, m, stage - 1 if kind == "F" else stage + 1)
                if stage == last and kind == "B":
                    needed = ("F", m, stage)
                if needed not in ends:
                    stuck = f"stage {stage} can't begin {kind}{m} before {needed[0]}{m} of stage {needed[2]}"
                    break
                begin = max(free[stage], ends[needed])
                free[stage] = ends[kind, m, stage] = begin + (forward if kind == "F" else backward)[stage]
                spans.append(Span(stage, f"{kind}{m}", begin, free[stage]))
                work.pop(0)
        if len(spans) == done:
            raise ValueError(stuck)
    return spans


def seconds_of(spans: Sequence[Span]) -> float:
    """Return the seconds from the first begin to the last end."""
    return max(span.end for span in spans) - min(span.begin for span in spans)


def idle_share(spans: Sequence[Span]) -> float:
    """Return the share of the time of all stages, from the first begin to the last end, without a pass."""
    stages = len({span.worker for span in spans})
    return 1 - sum(span.end - span.begin for span in spans) / (stages * seconds_of(spans))


def most_kept(schedule: Schedule) -> list[int]:
    """Return for each stage how many micro-batches wait for their backward pass at most."""
    return [max(itertools.accumulate(1 if kind == "F" else -1 for kind, _ in work)) for work in schedule]


def schedule_of(spans: Sequence[Span]) -> list[list[tuple[str, int]]]:
    """Return the schedule that the stages followed, by the begins of their passes."""
    ordered = sorted(spans, key=lambda span: span.begin)
    stages = range(1 + max(span.worker for span in spans))
    return [[(s.name[0], int(s.name[1:])) for s in ordered if s.worker == stage] for stage in stages]


def best_cuts(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the numbers of the blocks at which stages 1, 2, … begin, with the least possible largest sum.

    ``costs``: of each block, in the order of the network.
    """
    options = itertools.combinations(range(1, len(costs)), stages - 1)
    return min(options, key=lambda cuts: max(sums_between(costs, cuts)))


def sums_between(costs: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Return the sum of the costs of each stage; ``cuts`` as in ``best_cuts``."""
    return [float(np.sum(part)) for part in np.split(np.asarray(costs), list(cuts))]


def pass_seconds(spans: Sequence[Span], kind: str) -> list[float]:
    """Return the median seconds of a pass of each stage. ``kind``: ``F`` or ``B``."""
    stages = range(1 + max(span.worker for span in spans))
    found = [[s.end - s.begin for s in spans if s.worker == stage and s.name[0] == kind] for stage in stages]
    return [float(np.median(seconds)) for seconds in found]


def timelines(runs: Mapping[str, Sequence[Span]], end: float = 0.0) -> "Figure":
    """Draw when each stage computed which micro-batch, and how many it kept, one panel for each run.

    ``end``: of the axis, in seconds, if no run is longer.
    """
    panels, rows = {}, {}
    for name, spans in runs.items():
        title = f"{name}: stages are idle for {idle_share(spans):.0%}"
        panels[title] = [span._replace(name=f"{PASSES[span.name[0]]}:{span.name[1:]}") for span in spans]
        kept = enumerate(most_kept(schedule_of(spans)))
        rows[title] = [f"stage {stage}, keeps {most:2} at most" for stage, most in kept]
    return figures.timelines(panels, rows, end)


def write_trace(spans: Sequence[Span], path: Path) -> None:
    """Write the spans in the format of ``labkit trace``. A step there is a micro-batch here."""
    shown = []
    for worker, name, begin, end in sorted(spans):
        kind = "forward" if name[0] == "F" else "backward"
        shown.append(timeline.Span(f"stage {worker}", int(name[1:]), kind, begin, end))
    offsets = {span.worker: 0.0 for span in shown}
    timeline.write_trace(timeline.Timeline(tuple(shown), offsets, has_exchanges=False), path)


class Waiting:
    """A stage as ``stages.Blocks`` whose passes only take seconds: they wait, which needs no core.

    ``computes``: whether they keep a core busy for so long instead.
    """

    def __init__(self, forward: float, backward: float, *, computes: bool = False) -> None:
        self._forward, self._backward, self._computes = forward, backward, computes
        self.kept: dict[int, Any] = {}
        self.gradient: Any = 0.0

    def forward(self, m: int, inputs: Any) -> Any:
        self.kept[m] = inputs
        return self._pass(self._forward, inputs)

    def backward(self, m: int, gradient: Any) -> Any:
        del self.kept[m]
        return self._pass(self._backward, gradient)

    def _pass(self, seconds: float, values: Any) -> Any:
        end = time.thread_time() + seconds
        while self._computes and time.thread_time() < end:
            pass
        time.sleep(0 if self._computes else seconds)
        return values
