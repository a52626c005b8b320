"""A real Slurm with two nodes on this host: roles of tasks, requeues, and trainings that continue."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.slurm import BatchOptions, render_batch_script, render_search_script
from labkit.config import Config
from labkit.config.config import flags_of
from labkit.distributed.task import parse_tf_config
from labkit.experiments.search.result import SearchResult
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from tests.cluster.slurm_host import SlurmHost, missing, slurm_host, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

LABKIT = Path(sys.executable).with_name("labkit")
TRAINING = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 16,
    "eval_batch_size": 500,
    "learning_rate": 0.02,
    "batch_norm_decay": 0.9,
    "num_gpus": 0,
    "num_intra_threads": 1,
    "checkpoint_every_steps": 5,
    "log_every_steps": 25,
    "validate_every_steps": 0,
    "evaluate_test": False,
    "sync": True,
}

# Takes labkit's place in a batch script: tells its own place, counts one step in a tenth of a second, and
# keeps the count in a file, as a training does with its checkpoint.
COUNTER = """#!{python}
import os, signal, sys, time
from pathlib import Path
from labkit.cluster.slurm import task_from_slurm
from labkit.distributed.task import make_tf_config

task = task_from_slurm(os.environ)
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
file = Path("count-" + str(task.task_index))
count = int(file.read_text()) if file.exists() else 0
lost = Path("lost-" + str(task.task_index))
lost.unlink(missing_ok=True)
print("TF_CONFIG", make_tf_config(task), "process", os.getpid(), flush=True)
while count < {steps}:
    if lost.exists():
        sys.exit(75)
    if asked:
        file.write_text(str(count))
        sys.exit(143)
    time.sleep(0.1)
    count += 1
    print("rank", task.task_index, "step", count, flush=True)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmHost]:
    with slurm_host(tmp_path_factory.mktemp("slurm")) as host:
        yield host


def counting_job(slurm: SlurmHost, folder: Path, steps: int) -> tuple[str, Path]:
    """Submit a job of two counting tasks; return its id and its log."""
    program = folder / "counter"
    program.write_text(COUNTER.format(python=sys.executable, steps=steps))
    program.chmod(0o755)
    script = folder / "train.sbatch"
    options = BatchOptions(nodes=2, labkit=str(program), time_limit="10", max_restarts=1)
    script.write_text(render_batch_script(Config.from_flat(TRAINING), options))
    job = slurm.submit(script)
    return job, folder / f"labkit-{job}.log"


def lines_with(log: Path, pattern: str) -> list[str]:
    return re.findall(pattern, log.read_text(), re.MULTILINE) if log.exists() else []


def counted(log: Path, rank: int) -> list[int]:
    return [int(step) for step in lines_with(log, rf"^rank {rank} step (\d+)$")]


@pytest.mark.long
def test_the_command_that_prints_tf_config_inside_of_a_step(slurm):
    command = (str(LABKIT), "cluster", "tf-config", "--platform", "slurm", "--ps", "1")
    options = ("--nodes=2", "--ntasks=4", "--overcommit")
    shown = slurm.run("srun", *options, "--distribution=block", *command, timeout=60)
    tasks = [parse_tf_config(line) for line in shown.splitlines()]
    assert sorted(task.name for task in tasks) == ["chief:0", "ps:0", "worker:0", "worker:1"]
    with pytest.raises(AssertionError, match="start the step with srun --distribution=block"):
        slurm.run("srun", *options, "--distribution=cyclic", *command, timeout=60)


@pytest.mark.long
def test_tasks_find_their_place_and_a_requeue_lets_them_save_and_go_on(slurm, tmp_path):
    """The nodes' names don't resolve and both are this host: Slurm's own address, and distinct ports."""
    job, log = counting_job(slurm, tmp_path, steps=40)
    wait_for(lambda: all(counted(log, rank) for rank in (0, 1)), 60, slurm.logs)
    tasks = [parse_tf_config(text) for text in lines_with(log, r"^TF_CONFIG (\{.*\}) process")]
    assert sorted(task.name for task in tasks) == ["worker:0", "worker:1"]
    assert tasks[0].jobs == tasks[1].jobs
    hosts, ports = zip(*(address.split(":") for address in tasks[0].jobs["worker"]), strict=True)
    assert set(hosts) == {"127.0.0.1"} and len(set(ports)) == 2
    slurm.run("scontrol", "requeue", job)
    assert slurm.wait(job, "COMPLETED", timeout=90)["Restarts"] == "1"
    for rank in (0, 1):
        assert counted(log, rank) == list(range(1, 41))
    assert lines_with(log, "^labkit: job .* start (.),") == ["1", "2"]
    assert not list(tmp_path.glob("*.losses"))


@pytest.mark.long
def test_a_job_that_loses_tasks_gives_up_in_the_end(slurm, tmp_path):
    job, log = counting_job(slurm, tmp_path, steps=1000)
    wait_for(lambda: all(counted(log, rank) for rank in (0, 1)), 60, slurm.logs)
    (victim,) = lines_with(log, r'"index": 1.*process (\d+)$')
    os.kill(int(victim), signal.SIGKILL)
    # Slurm leaves the other task alone, so that it can say what it lost and end by itself.
    wait_for(lambda: lines_with(log, "task 1: Killed"), 30, slurm.logs)
    step = counted(log, 0)[-1]
    wait_for(lambda: counted(log, 0)[-1] > step, 30, slurm.logs)
    (tmp_path / "lost-0").touch()
    wait_for(lambda: len(lines_with(log, "^TF_CONFIG")) == 4, 60, lambda: f"{slurm.job(job)}\n{slurm.logs()}")
    for rank in (0, 1):
        (tmp_path / f"lost-{rank}").touch()
    assert slurm.wait(job, "FAILED", timeout=60)["Restarts"] == "1"
    assert lines_with(log, r"^labkit: lost a task \(exit code 137\); requeued$")
    assert lines_with(log, r"^labkit: lost a task \(exit code 75\); gave up, --max-restarts is 1$")


def training_job(
    slurm: SlurmHost, data_dir: Path, folder: Path, steps: int
) -> tuple[str, Path, RunDirectory]:
    """Submit a real training of two tasks; return job, log and run."""
    places = {"data_dir": str(data_dir), "job_dir": str(folder / "run")}
    config = Config.from_flat({**TRAINING, **places, "train_steps": steps})
    script = folder / "train.sbatch"
    options = BatchOptions(nodes=2, labkit=str(LABKIT), time_limit="10", max_restarts=0)
    script.write_text(render_batch_script(config, options))
    job = slurm.submit(script)
    return job, folder / f"labkit-{job}.log", RunDirectory(folder / "run")


def trained_steps(run: RunDirectory) -> list[int]:
    """Return the steps in the order in which they were written, each as often as it was trained."""
    rows = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    return [row["step"] for row in rows if row.get("split") == "train"]


@pytest.mark.long
def test_a_training_signalled_before_its_time_limit_requeues_itself_and_goes_on(slurm, shapes_dir, tmp_path):
    steps = 150  # enough that the signal comes in time
    job, log, run = training_job(slurm, shapes_dir, tmp_path, steps)
    wait_for(lambda: run.metrics_path.exists() and len(trained_steps(run)) >= 5, 90, lambda: log.read_text())
    slurm.run("scancel", "--signal=TERM", job)  # to the tasks and not to the script, as --signal does
    ended = slurm.wait(job, "COMPLETED", "FAILED", timeout=120)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), f"{log.read_text()}\n{slurm.logs()}"
    assert run.read_status().state == "finished"
    # Both tasks stopped at one step, saved there, and went on there: no step was trained twice.
    assert trained_steps(run) == list(range(1, steps + 1))
    assert lines_with(log, "^labkit: stopped after a checkpoint; requeued$")
    (stopped_at,) = lines_with(log, r"^interrupted: SIGTERM at step (\d+)")
    assert lines_with(log, rf"^continuing from step {stopped_at} of {steps}$")


@pytest.mark.long
def test_two_nodes_share_a_search_and_one_is_lost_in_the_middle(slurm, shapes_dir, tmp_path):
    folder, script = tmp_path / "search", tmp_path / "search.sbatch"
    left_out = ("learning_rate", "sync", "checkpoint_every_steps", "validate_every_steps", "evaluate_test")
    flags = {name: value for name, value in TRAINING.items() if name not in left_out}
    flags |= {"train_steps": 12, "data_dir": str(shapes_dir)}
    words = ["search", "--join", str(folder), "--space", "learning_rate=log:0.001:0.1", "--sampler", "random"]
    words += ["--trials", "4", "--halving", "successive", "--eta", "2", "--repeats", "0", *flags_of(flags)]
    options = BatchOptions(nodes=2, labkit=str(LABKIT), time_limit="10", max_restarts=0, cpus_per_task=2)
    script.write_text(render_search_script(words, options))
    job = slurm.submit(script)
    logs = [folder.with_name(f"labkit-{job}_{number}.log") for number in (1, 2)]

    def workers() -> list[str] | None:
        found = {one.worker for one in SearchResult(folder).progress.trials} - {""}
        return sorted(found) if len(found) == 2 else None

    lost = wait_for(workers, 120, lambda: f"{[log.exists() and log.read_text() for log in logs]}")[0]
    os.kill(int(lost.rpartition(" ")[2]), signal.SIGKILL)
    ends = [slurm.wait(f"{job}_{number}", "COMPLETED", "FAILED", timeout=200) for number in (1, 2)]
    assert {end["JobState"] for end in ends} == {"COMPLETED", "FAILED"}, [log.read_text() for log in logs]
    assert {node for log in logs for node in lines_with(log, r"^labkit: job .* on (n\d)$")} == {"n0", "n1"}
    found = SearchResult(folder)
    assert [len(one.results) for one in found.trials] == [3, 2, 1, 1]
    for one in found.trials:
        run = RunDirectory(folder / one.runs[0])
        steps = [row["step"] for row in read_metrics(run).split("train")]
        assert steps == list(range(1, one.results[-1].step + 1))
