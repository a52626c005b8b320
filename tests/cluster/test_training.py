"""Real clusters on this machine, each to its end: what they write, listen on, count and call."""

import gzip
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from labkit.analysis.timeline import read_timeline
from labkit.commands.main import main
from labkit.config import Config
from labkit.models.registry import build_model
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from labkit.run_directory.worker_metrics import read_worker_metrics
from tests.analysis.test_timeline import assert_is_trace
from tests.listening import listening_addresses
from tests.properties.harness import SMALL

pytestmark = pytest.mark.slow

STEPS = 40
FIELDS = SMALL | {
    "train_steps": STEPS,
    "validate_every_steps": 20,
    "deterministic": False,
    "num_gpus": 0,
    "inspect_every_steps": 20,
}
TIME_LIMIT = 200


@dataclass
class Ended:
    """A cluster that has ended: its run, its output, and every address that a process of it listened on."""

    run: RunDirectory
    code: int
    output: str
    listened: set[str] = field(default_factory=set)

    @property
    def asynchronous(self) -> bool:
        return "synchronous workers, each" not in self.output

    @property
    def train_rows(self) -> list[dict]:
        reader = read_metrics(self.run)
        assert not reader.damaged_lines
        return reader.split("train")


def run_cluster(job_dir: Path, *options: str, **fields: object) -> Ended:
    command = [sys.executable, "-m", "labkit", "cluster", "local", *options, "--", "train"]
    for name, value in (FIELDS | fields | {"job_dir": job_dir}).items():
        command += ["--" + name.replace("_", "-"), str(value)]
    output = job_dir.with_suffix(".txt")
    with open(output, "w") as file:
        launcher = psutil.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    listened: set[str] = set()
    deadline = time.monotonic() + TIME_LIMIT
    try:
        while launcher.poll() is None and time.monotonic() < deadline:
            for process in launcher.children(recursive=True):
                try:
                    listened |= {address for address, _ in listening_addresses(process.pid)}
                except psutil.Error:
                    continue  # it has just ended
            time.sleep(0.2)
        code = launcher.wait(max(0.1, deadline - time.monotonic()))
    finally:
        if launcher.is_running():
            launcher.kill()
    return Ended(RunDirectory(job_dir), code, output.read_text(), listened)


@pytest.fixture(scope="module", params=["in step", pytest.param("asynchronous", marks=pytest.mark.long)])
def ended(request, tmp_path_factory, shapes) -> Ended:
    job_dir = tmp_path_factory.mktemp("cluster") / "run"
    fields = {"callbacks": Path(__file__).with_name("asking.py")}
    if request.param == "in step":
        fields |= {"write_graph": True, "write_images": True}  # what the chief alone does
        fields |= {"gradient_compression": "bfloat16"}
        return run_cluster(job_dir, "--workers", "2", slow_worker="1:6", **fields)
    fields |= {"variable_placement": "greedy", "max_staleness": 3}
    return run_cluster(job_dir, "--workers", "2", "--ps", "2", slow_worker="1:6", **fields)


def test_a_cluster_trains_every_step_once_and_tests_what_it_trained(ended):
    assert ended.code == 0, ended.output[-3000:]
    for said in ("[worker:0] ", "[worker:1] ", "finished: 40 steps"):
        assert said in ended.output
    assert [row["step"] for row in ended.train_rows] == list(range(1, STEPS + 1))
    status = ended.run.read_status()
    assert status is not None
    assert (status.state, status.step) == ("finished", STEPS)
    reader = read_metrics(ended.run)
    validations = reader.split("validation")
    assert [row["examples"] for row in validations] == [1000, 1000, 1000]
    # Asked for after step 25; asynchronous steps that were under way ended before it.
    assert [validations[0]["step"], validations[2]["step"]] == [20, 40]
    latest = 25 + 4 * 2 if ended.asynchronous else 25
    assert 25 <= validations[1]["step"] <= latest
    assert [row["examples"] for row in reader.split("test")] == [2000]
    assert (ended.run.predictions_path / "test.npz").is_file()


def test_a_cluster_inspects_as_many_steps_as_were_asked_for(ended):
    rows = [json.loads(line) for line in ended.run.layers_path.read_text().splitlines()]
    if "synchronous workers, each" in ended.output:
        assert [row["step"] for row in rows] == [20, 40]
    else:  # steps are numbered in the order in which they end
        assert len(rows) == 2 and rows[0]["step"] <= 20 < rows[1]["step"] <= 40
    for row in rows:
        norms = dict(zip(row["layers"], row["gradient_norm"], strict=True))
        assert norms["stem_conv1"] > 0 and norms["stem_relu1"] is None


def test_the_chief_alone_calls_the_callbacks_at_every_point(ended):
    calls = json.loads(ended.run.path.with_name("run.calls.json").read_text())
    steps = [call[1:] for call in calls if call[0] == "after"]
    assert steps == [[row["step"], row["loss"]] for row in ended.train_rows]
    assert [row["twice_the_loss"] for row in ended.train_rows] == [2 * loss for _, loss in steps]
    assert [call for call in calls if call[0] in ("start", "end")] == [["start", 0], ["end", "finished"]]
    assert [call[1] for call in calls if call[0] == "before"] == list(range(1, STEPS + 1))
    assert ["checkpoint", STEPS] in calls


def test_a_cluster_listens_on_loopback_alone(ended):
    assert ended.listened == {"127.0.0.1"}


def test_each_worker_says_what_it_does_with_its_time(ended):
    workers = read_worker_metrics(ended.run.cluster_path)
    assert sorted(workers) == ["worker:0", "worker:1"]
    for rows in workers.values():
        for row in rows:
            shares = [row[f"{part}_fraction"] for part in ("input_wait", "compute", "communication", "other")]
            assert sum(shares) == pytest.approx(1.0)
            assert min(shares) >= 0
            assert row["examples_per_second"] > 0
    counted = sum(row["steps"] for rows in workers.values() for row in rows)
    # The first step of each worker compiles and isn't counted.
    assert counted == (STEPS - 2 if ended.asynchronous else 2 * (STEPS - 1))
    for row in ended.train_rows:
        assert row["replica_examples_per_second"] == pytest.approx(row["examples_per_second"] / 2)
        assert 0 <= row["communication_fraction"] <= 1


def test_no_update_is_staler_than_allowed(ended):
    staleness = [row.get("staleness") for row in ended.train_rows]
    if not ended.asynchronous:
        assert set(staleness) == {None}
        return
    assert 0 < max(staleness) <= 3
    rows = [row for rows in read_worker_metrics(ended.run.cluster_path).values() for row in rows]
    # The first step of each worker isn't in its metrics.
    assert sum(count for row in rows for count in row["staleness_counts"].values()) == STEPS - 2


def test_bytes_are_those_of_weights_gradients_and_batches(ended):
    model = build_model(
        Config.from_flat({"num_layers": 8}).model, num_classes=10, image_shape=(32, 32, 3), seed=0
    )
    weights = 4 * sum(math.prod(weight.shape) for weight in model.trainable_weights)
    statistics = 4 * sum(math.prod(weight.shape) for weight in model.non_trainable_weights)
    if ended.asynchronous:
        sent, received = weights + statistics, weights + 16 * (32 * 32 * 3 + 4)
    else:  # in bfloat16; of two workers in a ring, each sends 2 (2 - 1) / 2 of what is reduced
        sent = received = weights / 2 + statistics
    for rows in read_worker_metrics(ended.run.cluster_path).values():
        for row in rows:
            assert (row["bytes_sent_per_step"], row["bytes_received_per_step"]) == (sent, received)


def test_the_slow_worker_takes_longer(ended):
    own = {}
    for name, rows in read_worker_metrics(ended.run.cluster_path).items():
        steps = sum(row["steps"] for row in rows)
        own[name] = sum(row["own_seconds_per_step"] * row["steps"] for row in rows) / steps
    assert own["worker:1"] > 1.4 * own["worker:0"], own  # 3 times; less where other work slows the quick one


def test_a_trace_accounts_for_the_time_of_each_step(ended, tmp_path, capsys):
    output = tmp_path / "trace.json.gz"
    assert main(["trace", str(ended.run.path), "--steps", "30", "--output", str(output)]) == 0
    said = capsys.readouterr().out
    assert "30 steps of 2 workers, 11 to 40" in said and str(output) in said
    timeline = read_timeline(ended.run, 30)
    assert_is_trace(json.loads(gzip.decompress(output.read_bytes())), timeline)
    assert all(abs(offset) < 0.2 for offset in timeline.offsets.values()), "they have one clock"
    quick, slow = (timeline.seconds(f"worker:{index}") for index in (0, 1))
    if ended.asynchronous:
        assert slow["compute"] > 2 * quick["compute"] > 0
    else:  # they keep step, so all that they do takes equally long
        assert sum(quick.values()) == pytest.approx(sum(slow.values()), rel=0.2)
        seconds = (ended.train_rows[-1]["wall_time"] - ended.train_rows[9]["wall_time"]) / 30
        assert sum(quick.values()) == pytest.approx(seconds, rel=0.2)
    assert min(quick["exchange"], slow["exchange"]) > 0


def test_a_cluster_that_is_done_says_so_at_once(ended):
    config = Config.from_json(ended.run.read_config())
    options = ["--workers", "2"] if config.distribution.sync else ["--workers", "2", "--ps", "2"]
    placement = {
        "variable_placement": config.distribution.variable_placement,
        "gradient_compression": config.distribution.gradient_compression,
        "callbacks": config.run.callbacks,
    }
    before = ended.run.metrics_path.read_bytes()
    again = run_cluster(ended.run.path, *options, **placement)
    assert again.code == 0
    assert "nothing left to do" in again.output
    assert ended.run.metrics_path.read_bytes() == before


@pytest.mark.long
def test_no_update_is_lost_and_variables_are_spread(tmp_path):
    """Two workers, two servers in one process of their own: counter, round robin and greedy placement."""
    script = Path(__file__).with_name("parameter_servers.py")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=250, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all held"
