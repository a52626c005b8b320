"""Checks of exercises: ``check("04.2", answer)`` in a lesson.

A check tests properties of an answer, on inputs that it makes itself. It never compares with a stored answer.
What is wrong is said in one sentence that helps to go on.
"""

import functools
import importlib
import inspect
import math
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import labkit
from labkit.errors import InputError
from labkit.notebook.files import lesson_files

# Names by number. The exercises of a lesson are in course.lessons.exercises.<name>.
LESSONS = tuple(path.stem[3:] for path in lesson_files())
SECONDS = 30  # of one check
# Beginnings of the names of files whose lines are no student's: Python's, packages', the course's, labkit's.
NOT_THE_STUDENTS = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")),
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(labkit.__file__).parent}{os.sep}",
    "<frozen ",
)
# What checks call, apart from the course's own functions, less what kernels and debuggers exchange.
CALLED = ("builtins", "json", "math", "numpy", "numpy.linalg", "tensorflow", "keras")
EXCHANGED = ("__import__", "breakpoint", "display", "exit", "get_ipython", "input", "open", "print", "quit")
REPLACED = "your cell replaces {}, which the check may call; leave it as it is, and use a name of your own"
SEED = 0  # of ``draws``


class Wrong(Exception):
    """Raised by a test of an exercise. The message says what is wrong, with a hint, in one sentence."""


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lesson.

    Args:
        number: such as ``04.2``.
        title: what is to be done, in a few words.
        test: takes the answer; returns a sentence that says what was verified; raises Wrong.
    """

    number: str
    title: str
    test: Callable[[Any], str]


def tests(number: str, title: str) -> Callable[[Callable[[Any], str]], Exercise]:
    """Make a function the ``test`` of an exercise, as a decorator."""
    return functools.partial(Exercise, number, title)


@dataclass(frozen=True)
class Checked:
    """The verdict on an answer. True in a condition if the answer is right."""

    number: str
    right: bool
    text: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return f"{'✓' if self.right else '✗'} exercise {self.number}: {self.text}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        colour, fill = ("#009e73", "#eefaf5") if self.right else ("#d55e00", "#fff3e6")
        style = f"padding:.5em 1em;border-left:5px solid {colour};background:{fill};color:#1f2328"
        return f"<div style='{style}' role='status'>{escape(str(self))}</div>"


def check(number: str, answer: Any = None) -> Checked:
    """Check the answer of an exercise. Returns the verdict, which a notebook shows.

    Whatever the answer is or raises, nothing is raised here.

    Args:
        number: such as ``"04.2"``.
        answer: a value or a function, as the exercise asks.

    Raises InputError if there is no such exercise.
    """
    found, seen = exercise(number), Seen(own=True)
    if answer is None or answer is ...:
        return Checked(number, False, "not answered yet; replace the three dots, or the None, in this cell")
    try:
        with time_limit(SECONDS):
            text = found.test(answer)
        name = AT_IMPORT.replaced() or seen.replaced()
        return Checked(number, not name, REPLACED.format(name) if name else text)
    except Wrong as wrong:
        return Checked(number, False, str(wrong))
    except TooLong:
        return Checked(number, False, f"your answer ran for over {SECONDS} s; does a loop never end?")
    except NotImplementedError:
        return Checked(number, False, "not answered yet; your function raises NotImplementedError")
    except (Exception, SystemExit) as error:
        return Checked(number, False, _what_was_raised(error, answer))


def exercise(number: Any) -> Exercise:
    """Return an exercise. Raises InputError, with the numbers that exist, if there is none."""
    if not isinstance(number, str):
        raise InputError(f'exercise {number!r} is not a text; write check("04.2", answer)')
    lesson = number.partition(".")[0]
    if not (lesson.isdecimal() and len(lesson) == 2 and int(lesson) < len(LESSONS)):
        raise InputError(
            f"no lesson {lesson!r}; lessons are 00 to {len(LESSONS) - 1:02}, exercises 04.1, 04.2, …; "
            "projects project.1, project.2"
        )
    known = exercises(int(lesson))
    for found in known:
        if found.number == number:
            return found
    raise InputError(f"no exercise {number!r}; lesson {lesson} has {', '.join(e.number for e in known)}")


def exercises(lesson: int) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson, from 0."""
    module = importlib.import_module(f"course.lessons.exercises.{LESSONS[lesson]}")
    found = [each for each in vars(module).values() if isinstance(each, Exercise)]
    return tuple(sorted(found, key=attrgetter("number")))


class Seen:
    """The functions and classes that checks call, as they are now; ``own``: the course's, too."""

    def __init__(self, *, own: bool) -> None:
        modules = [name for name in sys.modules if name in CALLED or (own and name.startswith("course."))]
        self._values = {
            (module, name): value
            for module in modules
            for name, value in list(vars(sys.modules[module]).items())
            if callable(value) and name not in EXCHANGED
        }

    def replaced(self) -> str:
        """Return the name of one that is another by now; empty if there is none."""
        for (module, name), value in self._values.items():
            if getattr(sys.modules.get(module), name, None) is not value:
                return f"{module}.{name}"
        return ""


def draws(*seed: int) -> np.random.Generator:
    """Return what a check draws its inputs from: always the same, until ``SEED`` asks for others."""
    return np.random.default_rng([*seed, SEED] if SEED else seed)


# ---- what tests ask of an answer -----------------------------------------------------------------------


def a_result(answer: Any, what: str = "what your function returns") -> Any:
    """Return ``answer``. Raises Wrong where a function returned nothing."""
    if answer is None or answer is ...:
        raise Wrong(
            f"{what} is {shown(answer)}; replace the three dots; does your function return its result?"
        )
    return answer


def a_number(answer: Any, what: str = "your answer") -> float:
    """Return ``answer`` as a float. Raises Wrong for anything but one finite real number."""
    a_result(answer, what)
    try:
        if isinstance(answer, bool | np.bool_ | str | bytes):
            raise TypeError
        values = np.asarray(answer, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"{what} is {shown(answer)}; expected a number below 1e308") from None
    if values.size != 1:
        raise Wrong(f"{what} has the shape {list(values.shape)}; expected one number")
    value = float(values.reshape(()))
    if not math.isfinite(value):
        raise Wrong(f"{what} is {value}; expected a finite number")
    return value


def an_array(answer: Any, shape: Sequence[int], what: str = "your answer") -> NDArray[np.float64]:
    """Return ``answer`` as float64 of ``shape``; a tensor may be given. Raises Wrong for anything else."""
    a_result(answer, what)
    try:
        values = np.asarray(answer)
        if values.dtype.kind not in "fiub":
            raise TypeError
        values = values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"{what} is {shown(answer)}; expected numbers of the shape {list(shape)}") from None
    if values.shape != tuple(shape):
        raise Wrong(f"{what} has the shape {list(values.shape)}; expected {list(shape)}")
    if not np.isfinite(values).all():
        raise Wrong(f"{what} contains NaN or Infinity")
    return values


def explain(found: Any, ways: Iterable[tuple[Any, str]], rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Raise Wrong with the hint of the first wrong answer, as numbers of one shape, that ``found`` is."""
    for wrong, hint in ways:
        if np.allclose(found, wrong, rtol, atol):
            raise Wrong(hint)


def compare(
    found: float, right: float, what: str, hints: Sequence[tuple[float, str]], otherwise: str
) -> None:
    """Raise Wrong unless ``found`` is ``right``, with the hint of this wrong number, or ``otherwise``."""
    if not math.isclose(found, right, rel_tol=1e-6):
        known = (hint for wrong, hint in hints if math.isclose(found, wrong, rel_tol=1e-6))
        number = f"{found:,.0f}" if 1e4 <= abs(found) < 1e15 else f"{found:.4g}"
        raise Wrong(f"{what}, {number}: {next(known, otherwise)}")


def several(answer: Any, count: int, wanted: str) -> list[Any]:
    """Return a tuple, list or array of ``count`` things as a list. Raises Wrong with ``wanted`` otherwise."""
    a_result(answer)
    try:
        found = list(answer)
    except TypeError:
        found = []
    if isinstance(answer, str | dict) or len(found) != count:
        raise Wrong(f"return {wanted}")
    return found


def any_array(answer: Any, what: str = "your answer") -> NDArray[Any]:
    """Return ``answer`` as an array of any type and shape. Raises Wrong for lists of unequal lengths."""
    a_result(answer, what)
    try:
        return np.asarray(answer)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"{what} is {shown(answer)}; expected numbers, in rows of equal length") from None


def a_choice(answer: Any, allowed: Sequence[str]) -> str:
    """Return ``answer`` in the spelling of ``allowed``. Raises Wrong for anything else."""
    for choice in allowed:
        if isinstance(answer, str) and answer.strip().lower() == choice.lower():
            return choice
    raise Wrong(f"your answer is {shown(answer)}; expected one of {', '.join(map(repr, allowed))}")


def a_function(answer: Any, what: str = "your answer") -> Callable[..., Any]:
    """Return ``answer`` if it can be called. Raises Wrong otherwise."""
    if not callable(answer):
        raise Wrong(f"{what} is {shown(answer)}; expected a function: pass its name, without parentheses")
    return answer


def shown(value: Any) -> str:
    """Return ``value`` and its type in one short line, whatever its ``repr`` does."""
    if value is ...:
        return "still the three dots"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an answer's own, or an int of thousands of digits
        return f"a value of the type {type(value).__name__}"
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"


def _what_was_raised(error: BaseException, answer: Any) -> str:
    """Return one sentence with the line of the student's code that raised ``error``."""
    own = _file_of(answer)
    line, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file == own if own else may_be_the_students(file):
            line = f" in line {frame.tb_lineno} of your cell"
        frame = frame.tb_next
    if isinstance(error, SystemExit):
        return f"your answer ends the program{line}, as exit() does; return a result instead"
    text = " ".join(str(error).split())[:200]
    return f"your answer raised {type(error).__name__}{line}: {text}"


def _file_of(answer: Any) -> str:
    """Return the file that defines a function of the student's, "" where that isn't known."""
    try:
        file = str(inspect.unwrap(answer).__code__.co_filename)
    except (AttributeError, ValueError):
        return ""
    return file if may_be_the_students(file) else ""


def may_be_the_students(file: str) -> bool:
    """Return whether a line of code in this file may be the student's."""
    return not file.startswith(NOT_THE_STUDENTS) and "-packages" not in file


AT_IMPORT = Seen(own=False)  # before there is an answer


class TooLong(BaseException):
    """Not an Exception, so that an answer's ``except Exception`` doesn't catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in the code of the ``with`` block after ``seconds``, and again each second until it ends.

    From the second time on it is raised once more at the next line, which is that of an ``except:`` which
    caught it. Does nothing outside the main thread and where there is no SIGALRM.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    owner = sys._getframe(2)  # whose ``with`` it is; contextlib is between
    started, traced_by, fired = time.monotonic(), sys.gettrace(), 0

    def at_next_line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            raise TooLong
        return at_next_line

    def end(number: int, frame: Any) -> None:
        nonlocal fired
        fired += 1
        if fired > 1:
            sys.settrace(lambda frame, event, argument: None)
            while frame is not None and frame is not owner:
                frame.f_trace, frame = at_next_line, frame.f_back
        raise TooLong

    before = signal.signal(signal.SIGALRM, end)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(traced_by)
        signal.signal(signal.SIGALRM, before)
        if remaining:  # the limit around this one
            left = remaining - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)
