"""The verdict on a saved answer: its cell is run in a process of its own.

The verdict is that of the course's own check, on what the cell hands to ``check``. It comes back in a file
that the cell isn't told of, with a number that was drawn for this run. So what the cell prints, the exit code
of its process, and a ``check`` that it defines itself decide nothing. A cell that replaces a function which
the checks call is refused.

This is against accidents and easy cheats. It is no sandbox: the cell runs with the rights of who runs the
check, and in the process that checks it. Code that walks Python's frames or memory can find the file and the
number, and code that puts a function back in time isn't noticed. To grade people whom you don't trust, run
the check in a container, and read the answers.
"""

import json
import linecache
import os
import secrets
import subprocess
import sys
import tempfile
from typing import Any

from course.lessons import verdict
from course.lessons.verdict import Checked, Seen, TooLong, Wrong, time_limit
from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit
from labkit.startup.quiet_import import import_tensorflow

SECONDS = 120  # of an exercise's cell
SECONDS_TO_START = 60  # of its process, with TensorFlow
CELL = "<your cell>"


def examine(number: str, source: str, *, seed: int = 0) -> Checked:
    """Run the code of an exercise's cell in a process of its own. Returns the verdict on its answer.

    The process ends after ``SECONDS`` and the time of a start, and with it everything that the cell started.
    What the cell prints isn't shown.

    Args:
        number: such as ``"04.2"``.
        source: the code of the cell.
        seed: of the check's inputs; see ``course.lessons.verdict.draws``.
    """
    nonce = secrets.token_hex(16)
    job = {"number": number, "source": source, "seed": seed, "nonce": nonce, "seconds": SECONDS}
    command = python_command("-m", "course.lessons.examine")
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps(job).encode())
        given.seek(0)
        with Child(command, stdin=given, stdout=said, stderr=subprocess.DEVNULL) as child:
            code = child.wait(SECONDS + SECONDS_TO_START)
        said.seek(0)
        answer = said.read(1 << 20).decode(errors="replace")
    before, _, text = answer.partition("\n")
    if before == nonce:
        return Checked(number, **json.loads(text))
    if code is None:
        return Checked(number, False, too_long())
    why = f"the cell's process ended before the check did ({described_exit(code)}); does the cell end it?"
    return Checked(number, False, why)


def too_long() -> str:
    return f"the cell ran for over {SECONDS} s; does a loop never end?"


def judge(number: str, source: str) -> Checked:
    """Run the code of an exercise's cell in this process. Returns the verdict on its answer."""
    verdicts: list[Checked] = []
    error = run_exercise_cell(source, verdicts)
    own = [each for each in verdicts if each.number == number]
    if error is not None:
        return Checked(number, False, _what_was_raised(error))
    if not own:
        return Checked(number, False, f'the cell ended without check("{number}", …)')
    return own[-1]


def run_exercise_cell(source: str, verdicts: list[Any]) -> BaseException | None:
    """Run the code of an exercise's cell alone, and append each verdict. Returns what it raised, or None.

    A cell that runs for over ``SECONDS`` is ended with ``course.lessons.verdict.TooLong``. For one that
    replaces what checks call, a ``Wrong`` is returned.
    """
    from course import lessons

    check = verdict.check

    def checked(number: str, answer: Any = None) -> Any:
        verdicts.append(check(number, answer))
        return verdicts[-1]

    if "tensorflow" in source or "keras" in source:
        import_tensorflow()  # without its messages, and its time isn't the cell's
    seen, before = Seen(own=True), lessons.check
    lessons.check = checked  # for a cell that imports it
    # For AutoGraph, which reads the source of a tf.function.
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    try:
        with time_limit(SECONDS):
            exec(compile(source, CELL, "exec"), {"__name__": "__main__", "check": checked})
    except (Exception, SystemExit, TooLong) as error:
        return error
    finally:
        lessons.check = before
        linecache.cache.pop(CELL, None)
    name = seen.replaced()
    return Wrong(verdict.REPLACED.format(name)) if name else None


def _what_was_raised(error: BaseException) -> str:
    """Return one line that says what a cell raised, and what to do where that is known."""
    if isinstance(error, TooLong):
        return too_long()
    if isinstance(error, Wrong):
        return str(error)
    text = f"the cell raised {type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, NameError):
        return f"{text}; the cell is run alone: import and define in it what it uses"
    if isinstance(error, SyntaxError):
        return f"{text}; % and ! commands of notebooks don't work here"
    return text


def main() -> None:
    """Judge the cell that comes from standard input, and write the verdict to where standard output was."""
    global SECONDS
    job, process, result = json.load(sys.stdin), os.getpid(), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    SECONDS, verdict.SEED = job["seconds"], job["seed"]
    verdict.exercise(job["number"])  # imports what checks it, before the cell can change anything
    checked = judge(job["number"], job["source"])
    if os.getpid() == process:  # not a copy that the cell has forked
        text = json.dumps({"right": checked.right, "text": checked.text})
        os.write(result, f"{job['nonce']}\n{text}".encode())
    os._exit(0)  # whatever threads and handlers the cell has left


if __name__ == "__main__":
    main()
