"""Processes become tasks under Slurm and Kubernetes, and record how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.cluster.tasks import become_kubernetes_task
from labkit.commands import main as cli
from labkit.distributed.task import parse_tf_config
from labkit.errors import InputError
from labkit.startup.child import record_failure, record_stop

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("index", ["0", "3"])
def test_a_pod_becomes_the_task_of_its_index(index, tmp_path: Path):
    program = """
import sys
from labkit.cluster import tasks
tasks._labkit = lambda arguments: ["/usr/bin/env", sys.executable, "-c",
    "import os, sys; print(sys.argv[1:]); print(os.environ['TF_CONFIG'])", *arguments]
from labkit.commands import main
main.main(sys.argv[1:])
"""
    command = ["cluster", "kubernetes-task", "--name", "run", "--workers", "2", "--ps", "1", "--", "train"]
    result = subprocess.run(
        [sys.executable, "-c", program, *command, "--bind", "10.1.2.3"],
        env={**os.environ, "JOB_COMPLETION_INDEX": index},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    arguments, tf_config = result.stdout.splitlines()
    assert arguments == "['train', '--bind', '10.1.2.3']"
    assert parse_tf_config(tf_config).name == {"0": "chief:0", "3": "ps:0"}[index]


@pytest.mark.parametrize("given", [[], ["--bind", "0.0.0.0"], ["--bind=::1"]])
def test_a_slurm_task_gets_its_tf_config_and_listens_on_the_way_to_the_others(given, tmp_path: Path):
    program = """
import sys
from labkit.cluster import tasks
tasks._labkit = lambda arguments: ["/usr/bin/env", "-u", "none", sys.executable, "-c",
    "import os, sys; print(sys.argv[1:]); print(os.environ['TF_CONFIG'])"
    "; print(os.environ['LABKIT_EXIT_STATUS'])", *arguments]
tasks.become_slurm_task(sys.argv[1:], exit_status='job.0')
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
    assert result.stdout.endswith(f"\n{tmp_path / 'job.0'}\n")


RECORDING = """
import sys
from labkit.commands import main as cli
def end():
    {program}
cli.parse = lambda arguments: end
sys.exit(cli.main(["train"]))
"""


@pytest.mark.parametrize(
    ("program", "code", "recorded"),
    [
        ("return 0", 0, None),
        ("return 1", 1, "1"),
        ("return 75", 75, None),
        ("raise cli.InputError('no')", 2, "2"),
        ("raise ZeroDivisionError", 1, "1"),
    ],
)
def test_a_failure_is_recorded_if_a_launcher_asks_for_it(program, code, recorded, tmp_path):
    environment = {**os.environ, "LABKIT_EXIT_STATUS": str(tmp_path / "job.0")}
    command = [sys.executable, "-c", RECORDING.format(program=program)]
    assert subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode == code
    left = {path.name: path.read_text().strip() for path in tmp_path.iterdir()}
    assert left == ({"job.0.failed": recorded} if recorded else {})


def test_the_first_record_stays_also_of_bad_input_and_a_missing_folder_is_reported(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("SLURM_STEP_NODELIST", raising=False)
    given = ["cluster", "slurm-task", "--exit-status", str(tmp_path / "job.0"), "--", "train"]
    assert cli.main(given) == 2
    assert "SLURM_STEP_NODELIST is not set" in capsys.readouterr().err
    environment = {"LABKIT_EXIT_STATUS": str(tmp_path / "job.0")}
    record_failure(1, environment)
    record_stop(7, environment)
    assert (tmp_path / "job.0.failed").read_text() == "2\n"
    assert (tmp_path / "job.0.step").read_text() == "7\n"
    record_failure(1, {"LABKIT_EXIT_STATUS": str(tmp_path / "none" / "job.0")})
    assert "can't be written" in capsys.readouterr().err
    with pytest.raises(InputError, match="no command to start"):
        become_kubernetes_task([], name="run", workers=2, environment={"JOB_COMPLETION_INDEX": "0"})
