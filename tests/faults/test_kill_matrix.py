"""Who × when × how: whatever is killed, frozen or asked to stop, no step is lost and no process is left."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask, make_tf_config
from tests.faults.disturbances import hanging
from tests.faults.launched import HURTS, LIMIT, Cluster, flags, until, worker_rows
from tests.faults.outcome import IN_STEP, STEPS, TRAIN, Case, assert_same_run, assert_whole, stepping

pytestmark = HURTS

LONG = 600  # asynchronous steps: some are still to do when a lost worker is there again
VALIDATED = 50  # the step of a validation in the middle
SECONDS_TO_NOTICE = 30.0
SECONDS_TO_REAP = 10.0  # processes whose launcher was killed
KILL, FREEZE, TERM, INTERRUPT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT


# ---- moments -------------------------------------------------------------------------------------------


def joining(cluster: Cluster) -> None:
    """Wait until the tasks meet: nobody has trained, or knows yet what."""
    names = ("worker:0", "worker:1")
    until(lambda: all(map(cluster.joins, names)), cluster.text)


def compiling(cluster: Cluster) -> None:
    """Wait for the time between the start and the first step, which is compiled."""
    until(lambda: cluster.said(r"\d parameters, on "), cluster.text)
    assert cluster.step() == 0, "the first step came sooner than a look at the run"


def saving(cluster: Cluster) -> None:
    """Hold the chief in the middle of writing its second or a later checkpoint."""
    assert cluster.freeze_while_saving(after=10) > 10


def validating(cluster: Cluster) -> None:
    """Wait for a validation in the middle of the training."""
    until(lambda: cluster.validates(VALIDATED), cluster.text)


WORDS = {
    joining: "while the tasks meet",
    compiling: "before the first step",
    stepping: "between steps",
    saving: "while it writes a checkpoint",
    validating: "during validation",
}


@dataclass(frozen=True)
class Blow:
    """A signal that was sent: to whom, and when by two clocks. ``saved``: the newest checkpoint then."""

    who: str
    time: float
    wall_time: float
    saved: int

    def noticed(self, cluster: Cluster, by: str) -> tuple[str, float]:
        """Return who of ``by`` (a pattern) named the victim first, and after how many seconds."""
        victim = rf"\[(?P<by>{by})\].*\b{self.who}\b"
        line = cluster.said(victim, self.time)
        assert line is not None, cluster.text()
        seconds = line.time - self.time
        assert seconds < SECONDS_TO_NOTICE, cluster.text()
        match = re.search(victim, line.text)
        assert match
        return "launcher" if match["by"] == "cluster" else match["by"], seconds


def strike(cluster: Cluster, who: str, how: int, when: Callable[[Cluster], None]) -> Blow:
    """Send the signal at the moment."""
    until(lambda: cluster.task(who) or who == "launcher", cluster.text)
    when(cluster)
    saved = max(cluster.checkpoints(), default=0)
    wall_time = time.time()
    return Blow(who, cluster.send(who, how), wall_time, saved)


def first_step_again(cluster: Cluster, blow: Blow) -> float:
    """Return the seconds from the blow to the first step behind the resume point that followed it."""
    times = [point.wall_time for point in cluster.metrics().resume_points]
    since = next((time for time in times if time > blow.wall_time), blow.wall_time)
    rows = [row["wall_time"] for row in cluster.metrics().split("train") if row["wall_time"] > since]
    return rows[0] - blow.wall_time


def assert_went_on(cluster: Cluster, since: float, until_time: float) -> None:
    """Between two wall times steps ended, and not only those that were under way, one of each worker."""
    times = [row["wall_time"] for row in cluster.metrics().split("train")]
    late = [at for at in times if since + 0.5 < at < until_time]
    assert len(late) >= 3, f"training stood still for {until_time - since:.1f} s: {cluster.text()}"


# ---- a task is lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "how", "when"),
    [
        ("worker:1", KILL, joining),
        ("worker:0", KILL, compiling),
        pytest.param("worker:1", KILL, stepping, marks=pytest.mark.core),
        ("worker:0", KILL, saving),
        ("worker:1", FREEZE, stepping),
        ("worker:0", FREEZE, stepping),
    ],
)
def test_synchronous_all_start_again(launch, table, undisturbed, who, how, when):
    cluster = launch(**IN_STEP)
    blow = strike(cluster, who, how, when)
    assert cluster.end() == 0, cluster.text()
    assert cluster.restarts() == 1, cluster.text()
    assert set(cluster.resumed_at()) <= {blow.saved}
    assert_whole(cluster)
    assert_same_run(undisturbed, cluster)
    survivor = "worker:0" if who == "worker:1" else "worker:1"
    note(table, "sync", who, how, when, blow, cluster, by=survivor)


def test_synchronous_during_validation(launch, table, shapes_dir):
    cluster = launch(**IN_STEP, data_dir=shapes_dir, validate_every_steps=VALIDATED)
    blow = strike(cluster, "worker:1", KILL, validating)
    assert cluster.end() == 0, cluster.text()
    assert cluster.resumed_at() == [blow.saved] == [VALIDATED - 10]
    assert_whole(cluster)
    validations = cluster.metrics().split("validation")
    assert [(row["step"], row["examples"]) for row in validations] == [(VALIDATED, 1000), (STEPS, 1000)]
    note(table, "sync", "worker:1", KILL, validating, blow, cluster, by="worker:0")


@pytest.mark.parametrize(
    ("who", "how", "when"),
    [
        ("ps:0", KILL, stepping),
        ("ps:0", FREEZE, stepping),
        ("chief:0", KILL, saving),
        ("chief:0", FREEZE, stepping),
    ],
)
def test_asynchronous_all_start_again(launch, table, who, how, when):
    cluster = launch(ps=1, **TRAIN)
    blow = strike(cluster, who, how, when)
    assert cluster.end() == 0, cluster.text()
    assert cluster.restarts() == 1, cluster.text()
    assert cluster.resumed_at() == [blow.saved]
    assert_whole(cluster)
    survivors = r"(?:worker|ps):\d" if who == "chief:0" else "chief:0"
    note(table, "async", who, how, when, blow, cluster, by=survivors)


@pytest.mark.parametrize("how", [pytest.param(KILL, marks=pytest.mark.core), FREEZE])
def test_asynchronous_a_worker_is_replaced_while_training_goes_on(launch, table, how):
    # A frozen worker would hold the others back, until its step can't end any more; a killed one must not.
    steps = LONG if how == KILL else 2 * LONG
    limit = {"max_staleness": 2, "checkpoint_every_steps": 100} if how == KILL else {}
    cluster = launch(ps=1, **TRAIN | {"train_steps": steps, "checkpoint_every_steps": steps} | limit)
    blow = strike(cluster, "worker:1", how, stepping)
    assert cluster.end() == 0, cluster.text()
    by, seconds = blow.noticed(cluster, by="cluster")
    assert not cluster.resumed_at(), cluster.text()
    assert_whole(cluster, steps)
    staleness = [row["staleness"] for row in cluster.metrics().split("train")]
    assert max(staleness) <= limit.get("max_staleness", steps), "held back too late"
    served = cluster.said(r"\[worker:1\] worker:1 serves", blow.time)
    assert served is not None, cluster.text()
    back = blow.wall_time + served.time - blow.time
    again = [row for row in worker_rows(cluster.run, "worker:1") if row["wall_time"] > back]
    assert sum(row["steps"] for row in again) > 0, "the replaced worker took no part"
    assert cluster.text().count("[worker:0] worker:0 serves") == 1, "the other worker was started again, too"
    if how == FREEZE:  # a killed one is back after about a second, too soon to see steps of the others
        assert_went_on(cluster, blow.wall_time, blow.wall_time + seconds)
    what = "the worker is replaced, training continues"
    since = again[0]["wall_time"] - blow.wall_time
    table.append(case("async", "worker:1", how, stepping, what, by, seconds, since))


def test_an_asynchronous_worker_that_hangs_alone_is_replaced_while_training_goes_on(
    tmp_path, launch, monkeypatch, table
):
    folder, trigger = hanging(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.getcwd()]))
    patience = {"progress_timeout_seconds": 5.0, "peer_timeout_seconds": 30.0}
    cluster = launch(ps=1, **TRAIN | {"train_steps": LONG, "checkpoint_every_steps": LONG} | patience)
    stepping(cluster)
    began, wall_time = time.monotonic(), time.time()
    trigger.touch()
    assert cluster.end() == 0, cluster.text()
    assert cluster.said(r"\[worker:1\] \d\d+ threads hang", began), cluster.text()
    line = cluster.said(r"\[chief:0\].*worker:1 \(.*has made no progress for", began)
    replaced = cluster.said(r"\[cluster\] worker:1 .*started again while training continues", began)
    assert line and replaced, cluster.text()
    assert not cluster.restarts() and not cluster.resumed_at(), cluster.text()
    assert_went_on(cluster, wall_time, wall_time + line.time - began)
    assert_whole(cluster, LONG)
    what = "the worker is replaced, training continues"
    table.append(
        Case("async", "worker:1", "hangs alone", WORDS[stepping], what, "chief:0", line.time - began)
    )


# ---- a stop is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "how", "ps"),
    [
        ("worker:1", TERM, 0),
        ("launcher", INTERRUPT, 0),
        ("launcher", TERM, 1),
        ("ps:0", TERM, 1),
    ],
)
def test_a_request_to_stop_saves_and_the_same_command_goes_on(launch, table, undisturbed, who, how, ps):
    # No checkpoint is due before the end: what is restored is what the request made them save.
    options = (TRAIN if ps else IN_STEP) | {"ps": ps, "checkpoint_every_steps": STEPS}
    cluster = launch(**options)
    blow = strike(cluster, who, how, stepping)
    assert cluster.end() == 128 + how, cluster.text()
    seconds = time.monotonic() - blow.time
    status = cluster.run.read_status()
    assert status.state == "interrupted" and 15 <= status.step < STEPS
    assert cluster.checkpoints() == [status.step]
    assert "restart" not in cluster.text() and "lost peer" not in cluster.text()

    resumed = launch(**options)
    assert resumed.end() == 0, resumed.text()
    assert resumed.resumed_at() == [status.step]
    assert_whole(resumed)
    if not ps:
        assert_same_run(undisturbed, resumed)
    mode = "async" if ps else "sync"
    what = f"all save and end, exit code {128 + how}; the same command continues"
    table.append(case(mode, who, how, stepping, what, "all", seconds, None))


# ---- the launcher is killed, or a peer never appears ----------------------------------------------------


@pytest.mark.core
def test_a_killed_launcher_leaves_no_process_and_the_same_command_goes_on(launch, table, undisturbed):
    cluster = launch(**IN_STEP)
    blow = strike(cluster, "launcher", KILL, stepping)
    until(lambda: not cluster.processes(), lambda: cluster.processes(), SECONDS_TO_REAP)
    seconds = time.monotonic() - blow.time
    assert cluster.end() == -KILL
    saved = max(cluster.checkpoints())
    assert saved >= blow.saved > 0

    resumed = launch(**IN_STEP)
    assert resumed.end() == 0, resumed.text()
    assert resumed.resumed_at() == [saved]
    assert_whole(resumed)
    assert_same_run(undisturbed, resumed)
    what = "every process ends; the same command continues"
    table.append(case("sync", "launcher", KILL, stepping, what, "subreapers", seconds, None))


def test_a_peer_that_never_appears_is_named(tmp_path, table, data_dir):
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        addresses = tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second))
    task = ClusterTask({"worker": addresses}, "worker", 0)
    patience = 3.0
    given = flags(tmp_path / "run", **IN_STEP, data_dir=data_dir, rendezvous_seconds=patience)
    ended = subprocess.run(
        [sys.executable, "-m", "labkit", "train", *given],
        env={**os.environ, "TF_CONFIG": make_tf_config(task)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == EXIT_LOST_PEER, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "lost peer" in line]
    assert f"worker:1 ({addresses[1]}) did not appear within {patience:g} s" in line
    assert not (tmp_path / "run" / "config.json").exists()
    what = "the other gives up after `--rendezvous-seconds`, exit code 75"
    table.append(Case("sync", "worker:1", "never started", "–", what, "worker:0", patience))


# ---- the table -----------------------------------------------------------------------------------------


def case(mode, who, how, when, what, by, noticed, again) -> Case:
    role = " (chief)" if (mode, who) == ("sync", "worker:0") else ""
    return Case(mode, who + role, signal.Signals(how).name, WORDS[when], what, by, noticed, again)


def note(table, mode, who, how, when, blow: Blow, cluster: Cluster, *, by: str) -> None:
    """Add a case in which all started again, after one of the survivors (``by``) had named the victim."""
    survivor, seconds = blow.noticed(cluster, by)
    again = first_step_again(cluster, blow)
    table.append(case(mode, who, how, when, "all are restarted", survivor, seconds, again))
