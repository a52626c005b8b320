"""The forms in which each side of a comparison is measured; the best form of a side counts."""

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.allocators import ALLOCATORS, environment_with
from benchmarks.common import add_precisions_flag
from benchmarks.processes import Turns
from benchmarks.report import Figure, Goal

__all__ = ["Form", "add_form_flags", "best_of", "figures", "start_turns", "take_turns"]


class Form(NamedTuple):
    """One way to run a side. ``variant``: mode of execution, empty if there is only one."""

    side: str
    variant: str
    allocator: str

    @property
    def name(self) -> str:
        details = ", ".join(filter(None, (self.variant, self.allocator)))
        return f"{self.side} ({details})" if details else self.side


Speeds = Mapping[Form, list[float]]


def add_form_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that all sides share."""
    parser.add_argument(
        "--allocators",
        nargs="+",
        choices=ALLOCATORS,
        default=list(ALLOCATORS),
        help="allocator settings of each side",
    )
    add_precisions_flag(parser, help="precisions of every side")


def start_turns(
    stack: ExitStack,
    sides: Iterable[tuple[Form, str, Sequence[str]]],
    folder: Path,
    left_out: dict[str, str],
) -> dict[Form, Callable[[], float]]:
    """Start a process for each of ``sides`` and let it take a first turn, which traces and compiles.

    Args:
        stack: ends the processes.
        sides: forms, each with the module of this package that runs it, and its flags.
        folder: of the logs.
        left_out: gets the forms that can't be run here, with the reason.

    Returns, for each of the other forms, a function that takes a turn and returns images per second.
    """
    turns: dict[Form, Callable[[], float]] = {}
    for form, module, flags in sides:
        log_folder = folder / form.name.replace(" ", "-")
        side = stack.enter_context(Turns(module, log_folder, flags, environment_with(form.allocator)))
        reason = side.turn().get("unavailable")
        if reason:
            left_out[form.name] = reason
            print(f"without {form.name}: {reason}", flush=True)
        else:
            turns[form] = lambda side=side: side.turn()["images_per_second"]
    return turns


def take_turns(turns: Mapping[Form, Callable[[], float]], repeats: int) -> dict[Form, list[float]]:
    """Return images per second of each form, one value per repeat, and print them."""
    speeds: dict[Form, list[float]] = {form: [] for form in turns}
    for repeat in range(repeats):
        # In alternating order, so that a drift favours neither side.
        for form in list(turns) if repeat % 2 == 0 else list(turns)[::-1]:
            speeds[form].append(turns[form]())
        line = "  ".join(f"{form.name} {values[-1]:.0f}" for form, values in speeds.items())
        print(f"repeat {repeat + 1}/{repeats}, images/s: {line}", flush=True)
    return speeds


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
    ratios, rates = [], []
    for precision, speeds in found.items():
        mine = best_of(speeds, ours)
        for side, by_precision in goals.items():
            peer = best_of(speeds, side)
            if mine is not None and peer is not None:
                values = tuple(a / b for a, b in zip(speeds[mine], speeds[peer], strict=True))
                name = f"{precision}: {mine.name} over {peer.name}"
                ratios.append(Figure(name, "x", values, by_precision.get(precision)))
        rates += [
            Figure(f"{precision}: {form.name}", "images/s", tuple(values)) for form, values in speeds.items()
        ]
    return ratios + rates
