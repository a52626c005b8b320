"""Child processes: what they say of their end, and that nothing of them stays."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit

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
