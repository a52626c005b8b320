"""Child processes: what they say of their end, and that nothing of them stays."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit.experiments.trials import Trial, TrialEnd, run_trials
from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit, usable_cores

DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', flush=True); time.sleep(60)"
)
POLITE = "import time; print('up', flush=True); time.sleep(60)"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_sentence_of_a_refusal_travels_apart_from_the_output():
    with Child(python_command("-m", "labkit", "train", "--num-layers", "nine")) as child:
        said = list(child.lines())
        assert child.wait() == 2
        assert child.reason.startswith("--num-layers is 'nine'")
        assert said[-1] == f"labkit: error: {child.reason}"
    with Child(python("print('labkit: error: of something else'); raise SystemExit(2)")) as child:
        assert child.wait() == 2
        assert child.reason == ""


@pytest.mark.parametrize(("program", "code"), [(POLITE, -15), (DEAF, -9)])
def test_what_goes_on_after_its_time_is_killed(program, code):
    with Child(python(program)) as child:
        assert next(child.lines()) == "up"
        assert child.wait(0.05) is None
        child.stop(0.5)
        assert child.poll() == code
    assert described_exit(code) == {-15: "killed by SIGTERM", -9: "killed by SIGKILL"}[code]


def test_closing_ends_what_a_child_has_started_too(tmp_path):
    started = tmp_path / "pid"
    program = (
        f"import subprocess, sys, pathlib; other = subprocess.Popen([sys.executable, '-c', {DEAF!r}], "
        f"start_new_session=True); pathlib.Path({str(started)!r}).write_text(str(other.pid)); other.wait()"
    )
    with Child(python(program)) as child:
        assert next(child.lines()) == "up"
        other = psutil.Process(int(Path(started).read_text()))
    assert child.poll() == -9
    give_up = time.monotonic() + 10
    while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < give_up
    child.close()  # a second time does nothing
    child.kill()


def test_a_command_that_a_child_starts_by_itself_does_not_refuse_for_it():
    inner = python_command("-m", "labkit", "train", "--num-layers", "nine")
    program = f"import subprocess, labkit.startup.child; subprocess.run({inner!r}); raise SystemExit(1)"
    with Child(python_command("-c", program)) as child:
        assert any("--num-layers is 'nine'" in line for line in child.lines())
        assert child.wait() == 1
        assert child.reason == ""


def test_an_end_that_another_thread_sees_meanwhile_is_no_error(monkeypatch):
    with Child(python("pass")) as child:
        poll = child.poll

        def outdated() -> None:
            while poll() is None:
                time.sleep(0.01)

        monkeypatch.setattr(child, "poll", outdated)
        child.kill()
        monkeypatch.undo()
        child.kill()


def test_a_failure_of_whoever_hears_of_the_ends_lets_the_other_trials_save(tmp_path):
    saved = tmp_path / "saved"
    saves = (
        "import signal, sys, pathlib, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(saved)!r}).touch(), sys.exit(0)))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch(); time.sleep(60)"
    )
    waits = (
        "import pathlib, time\n"
        f"while not pathlib.Path({str(tmp_path / 'ready')!r}).exists(): time.sleep(0.01)"
    )

    def fails(number: int, end: TrialEnd) -> None:
        raise BrokenPipeError

    before = psutil.Process().children()
    with pytest.raises(BrokenPipeError) as kept:  # with its traceback, as a notebook keeps it
        run_trials([Trial(python(waits)), Trial(python(saves))], [], fails, at_a_time=2, seconds_to_save=20)
    assert saved.exists()
    assert psutil.Process().children() == before, kept


def test_cores_are_counted_where_a_process_cannot_ask_which_it_may_use(monkeypatch):
    assert 1 <= usable_cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    assert usable_cores() == os.cpu_count()
