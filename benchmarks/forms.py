"""The forms in which each side of a comparison is measured; the best form of a side counts."""

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Side, add_precisions_flag
from benchmarks.processes import ALLOCATORS, Turns
from benchmarks.report import Figure, Goal, ratios


class Form(NamedTuple):
    """One way to run a side. ``variant``: mode of execution, empty if there is only one."""

    side: str
    variant: str
    allocator: str

    def __str__(self) -> str:
        details = ", ".join(filter(None, (self.variant, self.allocator)))
        return f"{self.side} ({details})" if details else self.side


Speeds = Mapping[Form, list[float]]


def add_form_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that all sides share."""
    words = "allocator settings of each side"
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS), help=words)
    add_precisions_flag(parser, help="precisions of every side")


def start_turns(
    stack: ExitStack,
    sides: Iterable[tuple[Side, str, Mapping[str, Any], Mapping[str, str]]],
    folder: Path,
    left_out: dict[str, str],
) -> dict[Side, Callable[[], float]]:
    """Start a process for each of ``sides`` and let it take a first turn, which traces and compiles.

    Args:
        stack: ends the processes.
        sides: each with the module of this package that runs it, what it is told and its environment.
        folder: of the logs.
        left_out: gets the sides that can't be run here, with the reason.

    Returns, for each of the other sides, a function that takes a turn and returns images per second.
    """
    turns: dict[Side, Callable[[], float]] = {}
    for name, module, options, environment in sides:
        side = stack.enter_context(Turns(module, folder / str(name).replace(" ", "-"), options, environment))
        reason = side.turn().get("unavailable")
        if reason:
            left_out[str(name)] = reason
            print(f"without {name}: {reason}", flush=True)
        else:
            turns[name] = lambda side=side: side.turn()["images_per_second"]
    return turns


def best_of(speeds: Speeds, side: str) -> Form | None:
    """Return the side's form with the best median; None if the side was not measured."""
    forms = [form for form in speeds if form.side == side]
    return max(forms, key=lambda form: statistics.median(speeds[form]), default=None)


def figures(found: Mapping[str, Speeds], ours: str, goals: Mapping[str, Mapping[str, Goal]]) -> list[Figure]:
    """Return for each repeat our best form over the best form of each side, then every form's speed.

    Args:
        found: speeds by precision.
        ours: labkit's side.
        goals: by side and precision; a side that was not measured gets no ratio.
    """
    compared, rates = [], []
    for precision, speeds in found.items():
        mine = best_of(speeds, ours)
        for side, by_precision in goals.items():
            peer = best_of(speeds, side)
            if mine is not None and peer is not None:
                name, goal = f"{precision}: {mine} over {peer}", by_precision.get(precision)
                compared.append(Figure(name, "x", ratios(speeds[mine], speeds[peer]), goal))
        rates += [Figure(f"{precision}: {form}", "images/s", values) for form, values in speeds.items()]
    return compared + rates
