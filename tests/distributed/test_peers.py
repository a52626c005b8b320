"""Heartbeats: a session begins when all tasks know each other, and each loss is noticed and named."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.distributed import heartbeat as heartbeat_module
from labkit.distributed import peers as peers_module
from labkit.distributed.heartbeat import (
    Heartbeat,
    heartbeat_path,
    process_space,
    read_heartbeat,
    read_heartbeats,
    write_heartbeat,
)
from labkit.distributed.peers import EXIT_LOST_PEER, PeerLost, Peers
from tests.fuzzing import damaged_bytes

ADDRESSES = {f"worker:{index}": f"127.0.0.1:{4000 + index}" for index in range(4)}
LIMIT = 30.0  # seconds until a test gives up; nothing waits for it to pass
NEVER = 10_000.0  # a timeout that no test reaches


class Actor:
    """A task whose file the test writes by hand."""

    def __init__(self, folder: Path, name: str, **fields: object) -> None:
        self._path = heartbeat_path(folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        start = Heartbeat(name, ADDRESSES[name], "here", os.getpid(), "first", 0, "training", 0, {}, "", None)
        self.heartbeat = replace(start, process_space=process_space(), **fields)
        self.say()

    def say(self, **fields: object) -> None:
        self.heartbeat = replace(self.heartbeat, counter=self.heartbeat.counter + 1, **fields)
        write_heartbeat(self._path, self.heartbeat)


def until(condition: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never came"
        meanwhile()
        time.sleep(0.01)


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Callable[..., Peers]]:
    """Make tasks of one cluster; all leave in the end."""
    made: list[Peers] = []

    def make(name: str, *others: str, timeout: float = NEVER) -> Peers:
        at = {other: ADDRESSES[other] for other in others or sorted(ADDRESSES.keys() - {name})}
        peers = Peers(tmp_path / "cluster", name, ADDRESSES[name], at, interval=0.02, timeout=timeout)
        made.append(peers)
        peers.start()
        return peers

    yield make
    for peers in made:
        peers.leave()


def looks(peers: Peers, folder: Path, name: str, count: int) -> Callable[[], bool]:
    """Return whether ``peers`` has looked at the others ``count`` times from now on."""
    start = read_heartbeats(folder)[name].counter
    return lambda: read_heartbeats(folder)[name].counter >= start + count


def join(*tasks: Peers) -> None:
    """Let tasks of this process meet."""
    troubles: list[Exception] = []

    def meet(peers: Peers) -> None:
        try:
            peers.rendezvous(LIMIT)
        except PeerLost as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=meet, args=(peers,)) for peers in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not troubles


@pytest.fixture
def session(task, tmp_path) -> tuple[Peers, Actor, list[str]]:
    """A task that watches, the actor that it is in a session with, and the messages of losses."""
    peers = task("worker:0", "worker:1")
    actor = Actor(tmp_path / "cluster", "worker:1")
    until(lambda: peers._settled, lambda: (actor.say(), rendezvous_soon(peers)))
    losses: list[str] = []
    peers.watch(losses.append)
    return peers, actor, losses


def rendezvous_soon(peers: Peers) -> None:
    with suppress(PeerLost):
        peers.rendezvous(0.05)


def test_tasks_meet_and_take_each_other_into_the_session(task, tmp_path):
    tasks = [task(name) for name in ADDRESSES]
    join(*tasks)
    seen = read_heartbeats(tmp_path / "cluster")
    until(
        lambda: all(
            "" not in heartbeat.seen.values() for heartbeat in read_heartbeats(tmp_path / "cluster").values()
        )
    )
    lives = {name: heartbeat.incarnation for name, heartbeat in seen.items()}
    for name, heartbeat in read_heartbeats(tmp_path / "cluster").items():
        assert heartbeat.seen == {other: lives[other] for other in ADDRESSES if other != name}
        assert heartbeat.pid == os.getpid() and heartbeat.address == ADDRESSES[name]
    assert all(peers.lost() is None for peers in tasks)


def test_what_a_task_reports_is_in_its_next_heartbeat(task, tmp_path):
    peers = task("worker:0", "worker:1")
    peers.tell(phase="training", step=12, examples_per_second=345.5)
    peers.tell(message="é" * 10_000)
    until(lambda: read_heartbeats(tmp_path / "cluster")["worker:0"].message)
    heartbeat = read_heartbeats(tmp_path / "cluster")["worker:0"]
    assert (heartbeat.phase, heartbeat.step, heartbeat.examples_per_second) == ("training", 12, 345.5)
    assert set(heartbeat.message) == {"é"}
    assert heartbeat_path(tmp_path / "cluster", "worker:0").stat().st_size == 4096


def test_a_missing_peer_is_named_with_its_address(task, tmp_path):
    Actor(tmp_path / "cluster", "worker:1", phase="waiting")  # of an earlier session, and its process lives
    peers = task("worker:0", "worker:1", "worker:2", "worker:3")
    actor = Actor(tmp_path / "cluster", "worker:3", address="127.0.0.1:9999")
    until(looks(peers, tmp_path / "cluster", "worker:0", 5), actor.say)
    with pytest.raises(PeerLost) as caught:
        peers.rendezvous(0.3)
    text = str(caught.value)
    assert "worker:1 (127.0.0.1:4001) did not appear" in text
    assert "worker:2 (127.0.0.1:4002) did not appear" in text and "0.3 s" in text
    assert "worker:3" in text and "appeared as 127.0.0.1:9999" in text
    assert set(read_heartbeats(tmp_path / "cluster")["worker:0"].seen.values()) == {""}, (
        "none is taken for it"
    )
    assert peers.rendezvous(NEVER, stop=lambda: True) is False, "it ends when it is asked to"


def test_a_rendezvous_outlives_restarts_of_peers(task, tmp_path):
    first = task("worker:1", "worker:0")
    peers = task("worker:0", "worker:1")
    until(lambda: read_heartbeats(tmp_path / "cluster")["worker:0"].seen["worker:1"])
    first.leave()
    until(lambda: not read_heartbeats(tmp_path / "cluster")["worker:0"].seen["worker:1"])
    second = task("worker:1", "worker:0")
    join(peers, second)
    heartbeats = read_heartbeats(tmp_path / "cluster")
    assert heartbeats["worker:0"].seen["worker:1"] == heartbeats["worker:1"].incarnation


def test_a_rendezvous_waits_until_all_name_the_same_tasks(task, tmp_path):
    folder = tmp_path / "cluster"
    peers = task("worker:0", "worker:1", "worker:2")
    me = read_heartbeats(folder)["worker:0"].incarnation
    # worker:1 still is in a session with a worker:2 that has been restarted since.
    one = Actor(folder, "worker:1", seen={"worker:0": me, "worker:2": "earlier"})
    two = Actor(folder, "worker:2", seen={"worker:0": me, "worker:1": "first"})
    until(looks(peers, folder, "worker:0", 8), lambda: (one.say(), two.say()))
    with pytest.raises(PeerLost, match="worker:1 .*did not agree on worker:2"):
        peers.rendezvous(0.0)
    one.say(seen={"worker:0": me, "worker:2": "first"})
    until(lambda: peers._settled, lambda: (one.say(), two.say(), rendezvous_soon(peers)))


def test_a_restarted_peer_is_lost_and_does_not_join_the_old_session(session, task, tmp_path):
    _, actor, losses = session
    restarted = task("worker:1", "worker:0")
    until(lambda: losses)
    assert len(losses) == 1
    assert "worker:1 (127.0.0.1:4001" in losses[0] and "restarted" in losses[0]
    assert read_heartbeats(tmp_path / "cluster")["worker:0"].seen == {"worker:1": actor.heartbeat.incarnation}
    with pytest.raises(PeerLost, match="worker:0"):
        restarted.rendezvous(0.3)


def test_a_peer_whose_counter_stands_still_is_lost(task, tmp_path):
    peers = task("worker:0", "worker:1", timeout=0.4)
    actor = Actor(tmp_path / "cluster", "worker:1")
    until(lambda: peers._settled, lambda: (actor.say(), rendezvous_soon(peers)))
    losses: list[str] = []
    peers.watch(losses.append)
    message = peers.lost(wait=LIMIT)
    assert message is not None
    assert message.startswith("worker:1 (127.0.0.1:4001, pid ") and "sent no heartbeat for 0.4 s" in message
    until(lambda: losses)
    assert losses == [message]
    peers.tell(phase="training", message="all is well")  # too late: the others must hear of the loss
    until(looks(peers, tmp_path / "cluster", "worker:0", 5))
    own = read_heartbeats(tmp_path / "cluster")["worker:0"]
    assert (own.phase, own.message) == ("lost", message)
    assert losses == [message]


def test_a_peer_whose_process_is_gone_is_lost_at_once(session):
    _, actor, losses = session
    process = subprocess.Popen(["sleep", "1000"])
    actor.say(pid=process.pid)
    process.kill()
    process.wait()
    until(lambda: losses)  # its timeout would never pass
    assert f"pid {process.pid}" in losses[0] and "process is gone" in losses[0]


@pytest.mark.parametrize(
    "said", [{"process_space": "elsewhere"}, {"phase": "left"}], ids=["of another machine", "has left"]
)
def test_an_ended_process_is_no_loss_where_it_is_anothers_or_has_left(session, tmp_path, said):
    peers, actor, losses = session
    gone = subprocess.Popen(["true"])
    gone.wait()
    actor.say(pid=gone.pid, **said)
    until(looks(peers, tmp_path / "cluster", "worker:0", 10), actor.say)
    assert not losses and peers.lost() is None


def test_a_last_heartbeat_between_two_reads_is_not_missed(session, tmp_path, monkeypatch):
    peers, actor, losses = session
    alive = heartbeat_module.process_alive

    def leaves_just_now(pid: int) -> bool:
        if pid != 1:
            return alive(pid)
        actor.say(phase="left")
        return False

    monkeypatch.setattr(heartbeat_module, "process_alive", leaves_just_now)
    actor.say(pid=1)
    until(lambda: peers.heartbeats()["worker:1"].phase == "left")
    until(looks(peers, tmp_path / "cluster", "worker:0", 3))
    assert not losses


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("worker:2 (127.0.0.1:4002) has ended", "worker:2 (127.0.0.1:4002) has ended"),  # the first cause
        ("worker:0 (127.0.0.1:4000) has sent no heartbeat for 15 s", "took this task for lost"),
    ],
)
def test_the_first_cause_is_passed_on_and_a_task_taken_for_lost_is_told_so(session, message, said):
    _, actor, losses = session
    actor.say(phase="lost", message=message)
    until(lambda: losses)
    assert losses[0] == said or ("worker:1" in losses[0] and said in losses[0])


def test_a_dismissed_process_ends_and_not_the_one_that_replaces_it(session, tmp_path):
    peers, actor, losses = session
    actor.say(dismissed={"worker:0": "an earlier one", "worker:2": peers._heartbeat.incarnation})
    until(looks(peers, tmp_path / "cluster", "worker:0", 5))
    assert not losses
    peers.dismiss("worker:1", peers.incarnation_of("worker:1"))
    until(lambda: read_heartbeats(tmp_path / "cluster")["worker:0"].dismissed == {"worker:1": "first"})
    actor.say(dismissed={"worker:0": peers._heartbeat.incarnation})
    until(lambda: losses)
    assert "worker:1" in losses[0] and losses[0].endswith("took this task for lost: its step did not end")


def test_a_pause_of_this_process_is_not_the_loss_of_all_others(session, tmp_path, monkeypatch):
    peers, actor, losses = session
    jump = 0.0
    monkeypatch.setattr(peers_module.time, "monotonic", lambda real=time.monotonic: real() + jump)
    jump = 10 * NEVER  # as after SIGSTOP and SIGCONT: nobody moved, and much time has passed
    until(looks(peers, tmp_path / "cluster", "worker:0", 10))
    assert not losses
    actor.say()
    until(looks(peers, tmp_path / "cluster", "worker:0", 5))
    assert not losses


def test_the_second_process_of_a_task_ends_the_first(session, tmp_path):
    peers, _, losses = session
    Actor(tmp_path / "cluster", "worker:0", incarnation="second", pid=1234)
    until(lambda: losses)
    assert "worker:0 was started a second time (pid 1234" in losses[0]
    with pytest.raises(PeerLost, match="second time"):
        peers._settled = False
        peers.rendezvous(LIMIT)


def test_a_coordinator_outlives_its_workers_but_not_its_servers(task, tmp_path):
    folder = tmp_path / "cluster"
    chief = task("worker:0", "worker:1", "worker:2")
    server = Actor(folder, "worker:2")
    worker = task("worker:1", "worker:0")
    until(lambda: chief._settled, lambda: (server.say(), rendezvous_soon(chief)))
    losses: list[str] = []
    chief.watch(losses.append, of=["worker:2"])
    worker.leave()
    replaced = task("worker:1", "worker:0")
    assert replaced.rendezvous(LIMIT)
    assert not losses
    server.say(incarnation="second")
    until(lambda: losses)
    assert "worker:2" in losses[0]


def test_a_temporary_file_system_error_is_survived(session, tmp_path, capfd):
    peers, actor, losses = session
    folder, away = tmp_path / "cluster", tmp_path / "away"
    folder.rename(away)
    said: list[str] = []
    until(lambda: "can't be written" in "".join(said), lambda: said.append(capfd.readouterr().err))
    away.rename(folder)
    until(looks(peers, folder, "worker:0", 5), actor.say)
    assert not losses


def test_a_half_written_file_is_the_old_heartbeat_the_new_one_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat_module.time, "sleep", lambda seconds: None)
    path = heartbeat_path(tmp_path, "worker:1")
    contents, heartbeats = [], []
    actor = Actor(tmp_path, "worker:1", seen={"worker:0": "a"})
    for fields in (
        {"step": 9, "incarnation": "one"},
        {"step": 1234, "incarnation": "two", "message": "longer"},
    ):
        actor.say(**fields)
        contents.append(path.read_bytes())
        heartbeats.append(actor.heartbeat)
    old, new = contents
    assert len(old) == len(new)
    for cut in range(len(new.rstrip()) + 1):
        path.write_bytes(new[:cut] + old[cut:])
        assert read_heartbeat(path) in (*heartbeats, None)
        path.write_bytes(new[:cut])
        assert read_heartbeat(path) in (heartbeats[1], None)
    assert read_heartbeats(tmp_path) == {"worker:1": heartbeats[1]}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@example(data=None)
@example(data="digit")
def test_a_damaged_file_is_skipped_and_hides_no_other(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cluster")
    actor = Actor(folder, "worker:0", seen={f"worker:{index}": "life" for index in range(300)})
    assert heartbeat_path(folder, "worker:0").stat().st_size > 8192
    actor.say(seen={})  # the longer file of an earlier session does not show through
    good, path = {"worker:0": actor.heartbeat}, folder / "ps-1.json"
    assert read_heartbeats(folder) == good
    bad = Actor(folder, "worker:1")
    written = heartbeat_path(folder, "worker:1").read_bytes()
    heartbeat_path(folder, "worker:1").unlink()
    if data is None or data == "digit":
        content = b"[" * 50_000 if data is None else written.replace(b'"counter": 1', b'"counter": 7')
    else:
        content = data.draw(damaged_bytes(written) | st.binary(max_size=40))
    assert content != written or data not in (None, "digit")
    path.write_bytes(content)
    (folder / "ps-99.json").mkdir()
    found = read_heartbeats(folder)
    assert found.pop("worker:1", bad.heartbeat) == bad.heartbeat, "a checksum tells"
    assert found == good and read_heartbeats(folder / "missing") == {}


def test_a_process_whose_main_thread_hangs_ends_with_its_line_and_code_75():
    script = (
        "import sys, threading, time\n"
        "from labkit.distributed.peers import exit_after_loss\n"
        "sys.stdout.write('the last words')\n"
        "threading.Timer(0.1, exit_after_loss, ['worker:1 has ended']).start()\n"
        "time.sleep(1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == EXIT_LOST_PEER == 75
    assert done.stdout == "the last words"
    assert done.stderr == "labkit: lost peer: worker:1 has ended\n"


@pytest.mark.long
def test_a_blocked_stream_does_not_keep_a_lost_process_alive():
    script = (
        "import os, sys, threading\n"
        "from labkit.distributed.peers import exit_after_loss\n"
        "threading.Timer(0.5, exit_after_loss, ['worker:1 has ended']).start()\n"
        "while True: os.write(2, b'x' * 65536)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)  # nobody reads
    try:
        assert process.wait(LIMIT) == EXIT_LOST_PEER
    finally:
        process.kill()
        process.stderr.close()
