"""A signal that asks to stop ends each command with one line, whenever it comes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.startup.interruption import REQUESTS, stop_on_signals
from tests.signals import as_from_a_terminal

# Runs labkit, and sends itself the signal when the named module is about to be imported.
SIGNAL_AT_IMPORT = """\
import os, sys
module, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]

class SignalAt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, SignalAt())
from labkit.__main__ import main
sys.exit(main())
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("module", "command", "number"),
    [
        ("labkit.commands.main", "runs", signal.SIGINT),
        ("labkit.startup.quiet_import", "--version", signal.SIGUSR1),
        ("labkit.commands.runs", "runs", signal.SIGUSR1),
        ("labkit.commands.cluster", "cluster local -- train --sync", signal.SIGINT),
        ("labkit.commands.notebook", "notebook run train", signal.SIGUSR1),
        # Compiled modules turn exceptions into ImportError, and what is written meanwhile is held back.
        ("tensorflow", "train --preset smoke --dataset shapes", signal.SIGINT),
        ("tensorflow", "train --preset smoke --dataset shapes", signal.SIGUSR1),
    ],
)
def test_a_signal_during_the_start_ends_with_one_line(module, command, number, tmp_path):
    words = [sys.executable, "-c", SIGNAL_AT_IMPORT, module, str(int(number)), *command.split()]
    ended = subprocess.run(
        words,
        env={**ENVIRONMENT, "LABKIT_HOME": str(tmp_path)},
        preexec_fn=as_from_a_terminal,
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert (ended.returncode, ended.stderr) == (128 + number, f"labkit: {said}\n")


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGXCPU, "stopped by SIGXCPU")]
)
def test_a_signal_during_the_work_of_a_command_ends_with_one_line(number, said, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "data", "prepare", "--dataset", "shapes"],
        env={**ENVIRONMENT, "LABKIT_HOME": str(tmp_path)},
        preexec_fn=as_from_a_terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "generating" in process.stdout.readline()
        process.send_signal(number)
        said_last, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert said_last.endswith(f"labkit: {said}\n")
    assert "Traceback" not in said_last


@pytest.fixture
def own_handlers():
    """The handlers of signals are those from before, afterwards."""
    before = {number: signal.getsignal(number) for number in REQUESTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_batch_systems_signal_is_a_request_however_often_it_comes(own_handlers, number):
    signal.signal(number, signal.SIG_DFL)
    with stop_on_signals() as stop:
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert stop and stop.signal_number == number and stop.name == number.name
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number == number, "the exit code tells the first one"
    assert signal.getsignal(number) == signal.SIG_DFL


def test_ignored_signals_and_a_users_own_handlers_stay(own_handlers):
    got = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    signal.signal(signal.SIGUSR1, lambda *given: got.append(given))
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not stop and len(got) == 1
