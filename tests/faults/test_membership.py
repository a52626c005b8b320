"""Which errors a training process takes for the loss of another one, and which for its own failure."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.distributed import membership as module
from labkit.distributed.heartbeat import heartbeat_path, read_heartbeat, write_heartbeat
from labkit.distributed.membership import Membership
from labkit.distributed.peers import PeerLost, Peers
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.startup.interruption import StopRequest
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from tests.faults.launched import LIMIT, until

ADDRESSES = {"worker:0": "127.0.0.1:2222", "worker:1": "127.0.0.1:2223"}
NODE = "Graph execution error:\n\nDetected at node Cast\n\nNo such cast.\n\t [[{{node Cast}}]] [Op:__f_1]"


def make(run: RunDirectory) -> Membership:
    task = ClusterTask({"worker": tuple(ADDRESSES.values())}, "worker", 0)
    return Membership(task, Config.from_flat({"peer_timeout_seconds": 2.0}), run, "the same")


def heartbeat_of_ended_task(run: RunDirectory) -> None:
    """Write the heartbeat of a worker:1 whose process has ended."""
    peers = Peers(run.cluster_path, "worker:1", ADDRESSES["worker:1"], {"worker:0": ADDRESSES["worker:0"]})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run.cluster_path.mkdir(parents=True, exist_ok=True)
    write_heartbeat(heartbeat_path(run.cluster_path, "worker:1"), replace(peers._heartbeat, pid=ended.pid))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def restore_that_fails(run: RunDirectory, reason: Exception) -> InputError:
    """Return the error of a checkpoint whose reading ends with ``reason``."""

    class Checkpoint:
        def read(self, path):
            raise reason

    store = CheckpointStore(run.checkpoints_path)
    folder = store.path(4)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(asdict(CheckpointState(4, 0, "0" * 64, 2))))
    with pytest.raises(InputError, match="can't be restored") as raised:
        store.restore(Checkpoint(), 4)  # type: ignore[arg-type]
    return raised.value


@pytest.mark.parametrize(
    ("error", "is_read", "said"),
    [
        # A step that fails while all are there is no loss; a broken connection is one, in one line.
        (tf.errors.FailedPreconditionError(None, None, NODE), False, None),
        (tf.errors.InternalError(None, None, NODE), False, None),
        (
            tf.errors.UnavailableError(None, None, NODE),
            False,
            "broke: UnavailableError: No such cast.",
        ),
        # A server that is lost while a checkpoint is read doesn't make that damaged.
        (tf.errors.UnavailableError(None, None, "recvmsg:Connection reset"), True, "Connection reset"),
        (tf.errors.DataLossError(None, None, "Checksum does not match"), True, None),
        (ValueError("no"), False, None),
    ],
)
def test_which_errors_are_the_loss_of_a_peer(run, monkeypatch, error, is_read, said):
    monkeypatch.setattr(module, "SECONDS_TO_HEAR", -2.0)  # with the time-out: no time at all
    found = make(run).explain(restore_that_fails(run, error) if is_read else error)
    assert found is said is None or (said in found and "\n" not in found)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hung_worker_is_told_to_end_if_it_can_be_reached(run, capfd, reachable):
    with socket.socket() as server, socket.socket() as worker:
        for each in (server, worker):
            each.bind(("127.0.0.1", 0))
        server.listen()
        if reachable:
            worker.listen()
        at = [f"127.0.0.1:{each.getsockname()[1]}" for each in (server, worker)]
        jobs = {"chief": ("127.0.0.1:1",), "ps": (at[0],), "worker": (at[1], "127.0.0.1:2")}
        task = ClusterTask(jobs, "chief", 0)
        member = Membership(task, Config.from_flat({"progress_timeout_seconds": 2.0}), run, "the same")
        worker_of = Peers(run.cluster_path, "worker:0", at[1], {"chief:0": "127.0.0.1:1"}, interval=0.1)
        worker_of.start()
        member._peers.start()
        try:
            until(lambda: member._peers.incarnation_of("worker:0"), lambda: "its heartbeat was not read")
            with member.attempts.attempt("worker:1"):
                pass
            with pytest.raises(OSError), member.attempts.attempt("worker:0"):
                with member.attempts.attempt("worker:1"):
                    pass
                for _ in range(3):
                    member._dismiss_hung_workers(elapsed=21.0)  # a first step: ten times as long
                    assert member._dismissing is not None
                    member._dismissing.join(LIMIT)
                raise OSError
            dismissed = member._peers._heartbeat.dismissed
            assert dismissed == ({"worker:0": worker_of._heartbeat.incarnation} if reachable else {})
            [line] = [line for line in capfd.readouterr().err.splitlines() if "no progress" in line]
            said = "it is told to end" if reachable else f"chief:0 can't reach worker:0 ({at[1]}): "
            assert f"worker:0 ({at[1]}) has made no progress for 21 s" in line and said in line
        finally:
            member._peers.leave()
            worker_of.leave()


@pytest.fixture
def member(run: RunDirectory) -> Iterator[Membership]:
    made = make(run)
    yield made
    made.leave()


def test_a_task_that_ended_before_the_first_step_is_named_at_once(member, run):
    member._peers.start()
    heartbeat_of_ended_task(run)
    with pytest.raises(PeerLost, match=r"worker:1 \(127\.0\.0\.1:2223, pid \d+ on .*has ended"):
        member._peers.rendezvous(60.0, lambda: member._is_over(StopRequest()))


def test_what_an_earlier_session_left_is_no_loss(run):
    heartbeat_of_ended_task(run)
    member = make(run)
    member._peers.start()
    looks = 0

    def over() -> bool:
        nonlocal looks
        assert not member._is_over(StopRequest())
        looks += "worker:1" in member._peers.heartbeats()
        return looks > 3

    try:
        assert not member._peers.rendezvous(60.0, over)
    finally:
        member.leave()


def test_nobody_leaves_while_another_task_still_trains(member, run):
    others = {"worker:0": ADDRESSES["worker:0"]}
    other = Peers(run.cluster_path, "worker:1", ADDRESSES["worker:1"], others, interval=0.1)
    other.tell(phase="training")
    other.start()
    member._peers.start()
    member._is_connected = True

    def told() -> str:
        heartbeat = other.heartbeats().get("worker:0")
        return heartbeat.phase if heartbeat else ""

    leaving = threading.Thread(target=member.leave, daemon=True)
    try:
        until(lambda: "worker:1" in member._peers.heartbeats(), lambda: "its heartbeat was not read")
        leaving.start()
        until(lambda: told() == "done", lambda: "it did not say that it is done")
        assert leaving.is_alive()
        other.tell(phase="done")
        leaving.join(LIMIT)
        assert not leaving.is_alive()
        until(lambda: told() == "left", lambda: "it said no goodbye")
    finally:
        other.leave()


def test_a_lost_task_does_not_keep_the_others_from_leaving(member, run):
    heartbeat_of_ended_task(run)
    member._peers.start()
    member._is_connected = True
    until(lambda: "worker:1" in member._peers.heartbeats(), lambda: "its heartbeat was not read")
    member.leave()
    assert read_heartbeat(heartbeat_path(run.cluster_path, "worker:0")).phase == "left"
