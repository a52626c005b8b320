"""Exercises of lesson 14: failures of machines, and a training that survives them."""

import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.failure.processes import Event, Log, fork, read_log
from course.lessons.failure.training import expected_goodput
from course.lessons.verdict import Wrong, a_function, a_number, a_result, an_array, compare, draws, tests
from course.lessons.workers import Worker, run_answer

State = dict[str, NDArray[np.float64]]


@tests("14.1", "How often a cluster fails, and the chance that it doesn't")
def _survival(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(141).integers((500, 2, 1), (5000, 100, 60)).tolist()
    for machine, machines, hours in (
        (50_000, 16_384, 3), (1_000, 1, 100), (8_760, 64, 24), (200, 10, 50), drawn
    ):  # fmt: skip
        shown = f"for {machines:,} machines of {machine:,} h each and {hours} h of training"
        mtbf, chance = an_array(function(machine, machines, hours), (2,), f"{shown}, your result")
        right = machine / machines
        more = "longer than for one machine, but more machines fail more often"
        compare(mtbf, right, f"{shown}, the MTBF", [(machine * machines, more)], f"expected {right:.4g} h")
        expected = math.exp(-hours / right)
        hints = (
            (1 - expected, "this is the chance that something fails; the other one is asked for"),
            (1 - hours / right, "hours / MTBF is a number of failures, no chance: it can be above 1"),
            (math.exp(-hours / machine), "this is one machine's chance; all of them must survive"),
        )
        otherwise = f"expected {expected:.4g}; the chance falls as e^(-hours / MTBF)"
        compare(chance, expected, f"{shown}, the chance", hints, otherwise)
    return "N machines fail N times as often, and long trainings hardly ever end without a failure"


def _start() -> State:
    return {"weights": np.linspace(-1, 1, 100_000), "velocity": np.zeros(100_000)}


def _updated(state: State, step: int) -> tuple[State, float]:
    """Make a step with momentum. Changes nothing in place."""
    weights, velocity = state["weights"], state["velocity"]
    velocity = 0.9 * velocity - 0.1 * (weights - np.sin(step + 1.0))
    return {"weights": weights + velocity, "velocity": velocity}, float(np.square(weights).mean())


def _tried(worker: Worker, function: Callable[..., Any], steps: int, every: int, kills: Sequence[Any]) -> Any:
    """Run the function in a worker, in one process after the other, until one isn't killed.

    ``kills``: after how many updates each process is killed; as a float, after how many seconds of writing
    its third file; None: not. Returns (steps that it began, what it returned, what it raised) of each.
    """
    attempts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "saved")
        folder.mkdir()
        for number, kill in enumerate(kills):
            log, said = Path(name, f"{number}.log"), Path(name, f"{number}.json")
            fork(_process, function, steps, every, kill, folder, log, said).join()
            result, error = json.loads(said.read_text()) if said.exists() else (None, "")
            attempts.append(([event.step for event in read_log(log)], result, error))
            if said.exists():
                break
    return attempts


def _process(
    function: Any, steps: int, every: int, kill: Any, folder: Path, log: Path, said: Path
) -> None:  # fmt: skip
    note, begun = Log(log), 0
    if isinstance(kill, float):
        _kill_while_writing(folder, kill)

    def update(state: State, step: int) -> tuple[State, float]:
        nonlocal begun
        if begun == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        begun += 1
        note("step", step)
        return _updated(state, step)

    result, error = None, ""
    try:
        result = function(_start(), update, steps, every, folder)
        result = result if result is None else np.asarray(result, np.float64).tolist()
    except (Exception, SystemExit) as raised:
        error = f"{type(raised).__name__}: {' '.join(str(raised).split())[:120]}"
    said.write_text(json.dumps([result, error]))


def _kill_while_writing(folder: Path, seconds: float) -> None:
    """Let the kernel end this process ``seconds`` after it opens its third file in ``folder`` for writing."""
    opened = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal opened
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            opened += str(arguments[0]).startswith(str(folder))
            if opened == 3:
                signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal ends a process

    sys.addaudithook(watch)


@tests("14.2", "A training that survives being killed")
def _survives(answer: Any) -> str:
    function, random = a_function(answer), draws(142)
    lost = killed = 0
    drawn = tuple(random.integers(2, 20, 4).tolist())
    for steps, every, kills in (
        (7, 3, ()), (24, 5, (17, 3, 6)), (40, 8, drawn), (30, 4, (1e-4,)), (30, 4, (4e-4,)), (30, 4, (1e-3,)),
    ):  # fmt: skip
        attempts = run_answer(1, _tried, function, steps, every, (*kills, None)).results[0]
        _judge(steps, every, kills, attempts)
        lost += sum(len(made) for made, *_ in attempts) - steps
        killed += len(attempts) - 1
    return (
        f"{killed} processes were killed, some while writing; {lost} steps were made again, and each loss is "
        "that of the undisturbed training, bit by bit"
    )


def _judge(steps: int, every: int, kills: Sequence[Any], attempts: list[tuple[list[int], Any, str]]) -> None:
    """Raises Wrong where a process doesn't go on from its last checkpoint, or where losses differ."""
    done = 0
    for number, (made, _, error) in enumerate(attempts):
        if error and number and isinstance(kills[0], float):
            raise Wrong(
                f"a process was killed while it wrote a checkpoint; the next one raised {error}. Write to "
                "another name, then put it in the place of the old file: os.replace does this at once"
            )
        if error:
            raise Wrong(f"{'after a kill, ' * (number > 0)}your function raised {error}")
        if not made and not number:
            raise Wrong("your function made no step; call update(state, step) for each")
        first, due = made[0] if made else steps, done // every * every
        if number and first != due and not isinstance(kills[0], float):
            hint = "is the newest state loaded?" if first else "load what was saved"
            if first == due - 1:
                hint = f"the state after step {first} goes on with step {due}"
            hint = hint if first < due else "save when (step + 1) % every == 0"
            raise Wrong(
                f"{done} steps were made with a checkpoint every {every}, but the next process went on at "
                f"step {first}, not {due}; {hint}"
            )
        done = first + len(made)
        if made != list(range(first, done)):
            raise Wrong(f"a process made the steps {made[:6]}…; each follows the one before it")
    result = a_result(attempts[-1][1])
    losses = an_array(result, np.shape(result), "what your function returns")
    if losses.shape != (steps,):
        raise Wrong(
            f"after {len(attempts) - 1} kills your function returned {losses.size} losses of {steps} steps; "
            "each step counts once, so the losses so far belong into the checkpoint"
        )
    state = _start()
    for step, found in enumerate(losses):
        state, loss = _updated(state, step)
        if found != loss:
            raise Wrong(
                f"the loss of step {step} isn't that of the undisturbed training; is everything in the "
                "checkpoint that the next step depends on?"
            )


@tests("14.3", "The steps between two checkpoints that lose least")
def _interval(answer: Any) -> str:
    function, worst, random = a_function(answer), 1.0, draws(143)
    drawn = float(random.uniform(1, 30)), 1e7, int(random.integers(100, 2000)), float(random.uniform(0.1, 5))
    for checkpoint, machine, machines, step in (
        (60, 1.8e8, 16_384, 5), (5, 3e6, 256, 0.25), (0.05, 12, 8, 0.01), (1, 4e5, 1, 0.5), (0.1, 50, 4, 9),
        drawn,
    ):  # fmt: skip
        shown = f"checkpoints of {checkpoint} s, {machines:,} machines of {machine:g} s and steps of {step} s"
        steps = a_number(function(checkpoint, machine, machines, step), f"for {shown}, your result")
        if steps != round(steps) or steps < 1:
            raise Wrong(f"for {shown}, {steps:g}: a whole number of steps is asked for, 1 or more")
        best = math.sqrt(2 * checkpoint * machine / machines) / step
        tried = [steps, *(max(1, round(best * factor)) for factor in np.geomspace(0.5, 2, 200))]
        lost = [1 - expected_goodput(n * step, checkpoint, 0, machine / machines) for n in tried]
        worst = max(worst, lost[0] / min(lost))
        if lost[0] > 1.02 * min(lost):
            hints = (
                (best * step, "this is in seconds; divide by the seconds of a step"),
                (best / math.sqrt(2), "the 2 under the root is missing"),
                (best * math.sqrt(machines), "this is for one machine; the MTBF of the cluster is shorter"),
                (best * machines, "more machines fail more often, not less"),
            )
            hint = next((hint for wrong, hint in hints if abs(steps - wrong) <= 1), "")
            raise Wrong(
                f"with {shown}, {steps:,.0f} steps lose {lost[0]:.1%} of the time; {min(lost):.1%} is "
                f"possible{hint and f': {hint}'}"
            )
    return f"your intervals are expected to lose at most {worst - 1:.1%} more time than the best ones"


def make_log(story: str, step_seconds: float) -> tuple[list[Event], int]:
    """Return the log of a training, and how many of its steps count at its end.

    ``story``: ``.`` a step, ``s`` saved, ``x`` lost, ``r`` a restart.
    """
    log, step, saved = [Event(5.0, "start")], 0, 0
    for letter in story:
        step = saved if letter == "x" else step + (letter == ".")
        saved = step if letter == "s" else saved
        what, lasts = {".": ("step", 1.0), "s": ("saved", 0.3), "x": ("lost", 0.4), "r": ("start", 2.0)}[
            letter
        ]
        log.append(Event(log[-1].seconds + lasts * step_seconds, what, step))
    return log, step


@tests("14.4", "The goodput of a training from its log")
def _goodput(answer: Any) -> str:
    function, random = a_function(answer), draws(144)
    for story in (
        "....s..xr....s.xr..s",
        "...s....xr...s.xr...s..",
        "..s...s.xr..xr..s...x",
        ".....xr...xr..",
    ):
        step_seconds = float(random.uniform(0.1, 2))
        log, count = make_log(story, step_seconds)
        shown = f"for a log that ends with {log[-1].what!r}, your result"
        found = a_number(function(list(log), step_seconds), shown)
        share = step_seconds / (log[-1].seconds - log[0].seconds)
        made, last = sum(event.what == "step" for event in log), max(event.step for event in log)
        saved = max((event.step for event in log if event.what == "saved"), default=0)
        hints = (
            (made * share, "steps that were made twice count once"),
            (last * share, "the steps after the last checkpoint are lost"),
            (saved * share, "steps after the last checkpoint count, unless they are lost"),
            (count * share / step_seconds, "steps per second have a unit; goodput is a share of the time"),
            (count * step_seconds / log[-1].seconds, "the clock of a log doesn't begin at 0"),
        )
        seconds = log[-1].seconds - log[0].seconds
        otherwise = (
            f"{count} steps of {step_seconds:.2f} s count in {seconds:.1f} s; expected {count * share:.3f}"
        )
        compare(found, count * share, shown, hints, otherwise)
    return "a step counts once, and only if no failure took it back"
