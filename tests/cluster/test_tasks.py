"""The wrapper of a TFJob's tasks: exit codes and signals as the operator needs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.cluster.exit_status import note_failure, note_step
from labkit.cluster.tasks import become_slurm_task, run_tfjob_task
from labkit.commands import main as cli
from labkit.errors import InputError

# A training's place is taken by a short program.
WRAPPER = """
import sys
from labkit.cluster import tasks
tasks._labkit = lambda arguments: [sys.executable, "-c", *arguments]
sys.exit(tasks.run_tfjob_task(sys.argv[1:]))
"""


def start(program: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRAPPER, program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(1)", 1),
        ("raise SystemExit(2)", 2),
        ("raise SystemExit(75)", 138),
        ("raise SystemExit(143)", 143),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_exit_codes_in_the_terms_of_a_tfjob(program, code):
    """Below 128 the operator gives up, from 128 on it starts the pod again."""
    process = start(program)
    assert process.wait(30) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_training_which_saves(number):
    program = (
        "import signal, sys, time\n"
        "def save(number, frame):\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(128 + number)\n"
        f"signal.signal({int(number)}, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = start(program)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stdout.read() == "saved\n"
    finally:
        process.kill()


def test_nothing_to_start():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InputError, match="no command to start"):
        run_tfjob_task([])
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_of_slurm_nothing_is_started():
    with pytest.raises(InputError, match="SLURM_STEP_NODELIST is not set"):
        become_slurm_task(["train"], environment={})


@pytest.mark.parametrize("given", [[], ["--bind", "0.0.0.0"], ["--bind=::1"]])
def test_a_slurm_task_gets_its_tf_config_and_listens_on_the_way_to_the_others(given, tmp_path: Path):
    program = """
import sys
from labkit.cluster import tasks
tasks._labkit = lambda arguments: ["/usr/bin/env", "-u", "none", sys.executable, "-c",
    "import os, sys; print(sys.argv[1:], os.environ['TF_CONFIG'], os.environ['LABKIT_ENDING'])", *arguments]
tasks.become_slurm_task(sys.argv[1:], ending='job.0')
"""
    step = {
        "SLURM_STEP_NODELIST": "anywhere",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "7",
    }
    result = subprocess.run(
        [sys.executable, "-c", program, "train", *given],
        env={**os.environ, **step},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    bind = given or ["--bind", "127.0.0.1"]
    assert result.stdout.startswith(str(["train", *bind]))
    assert '"worker": ["127.0.0.1:23940", "127.0.0.1:23941"]' in result.stdout
    assert '"index": 1' in result.stdout
    assert result.stdout.endswith(f" {tmp_path / 'job.0'}\n")


NOTING = """
import sys
from labkit.commands import main as cli
def end(options):
    {program}
cli.parse = lambda arguments: ("train", None, end)
sys.exit(cli.main(["train"]))
"""


@pytest.mark.parametrize(
    ("program", "code", "noted"),
    [
        ("return 0", 0, None),
        ("return 1", 1, "1"),
        ("return 75", 75, None),
        ("raise cli.InputError('no')", 2, "2"),
        ("raise ZeroDivisionError", 1, "1"),
    ],
)
def test_a_failure_is_noted_where_a_launcher_asks_for_it(program, code, noted, tmp_path):
    environment = {**os.environ, "LABKIT_ENDING": str(tmp_path / "job.0")}
    command = [sys.executable, "-c", NOTING.format(program=program)]
    assert subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode == code
    left = {path.name: path.read_text().strip() for path in tmp_path.iterdir()}
    assert left == ({"job.0.failed": noted} if noted else {})


def test_a_slurm_task_without_a_place_is_noted_too(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    given = ["cluster", "slurm-task", "--ending", str(tmp_path / "job.0"), "--", "train"]
    assert cli.main(given) == 2
    assert (tmp_path / "job.0.failed").read_text() == "2\n"


def test_the_first_note_stays_and_a_lost_folder_is_said(tmp_path, capsys):
    place = {"LABKIT_ENDING": str(tmp_path / "job.0")}
    note_failure(1, place)
    note_failure(2, place)
    note_step(7, place)
    assert (tmp_path / "job.0.failed").read_text() == "1\n"
    assert (tmp_path / "job.0.step").read_text() == "7\n"
    note_failure(1, {"LABKIT_ENDING": str(tmp_path / "none" / "job.0")})
    assert "can't be written" in capsys.readouterr().err
