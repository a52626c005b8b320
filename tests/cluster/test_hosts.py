"""Hosts on one machine: tasks reach each other, nothing else reaches them, and nothing is left of them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from labkit.cluster.hosts import Hosts, PrivateNetwork, check_link
from labkit.cluster.local_run import run_local_cluster
from labkit.distributed.heartbeat import read_heartbeats
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics

NAMES = ["worker:0", "worker:1"]
SECONDS = 60.0
# Each task serves its own address, greets the other, and says what else it could reach.
GREET = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
index, places = config["task"]["index"], config["cluster"]["worker"]
host, port = places[index].split(":")
server = socket.create_server((host, int(port)))
def reach(place, seconds=30.0):
    host, port = place.rsplit(":", 1)
    end = time.monotonic() + seconds
    while True:
        try:
            return bool(socket.create_connection((host, int(port)), 1.0).close()) or True
        except OSError as error:
            if time.monotonic() > end:
                return f"{type(error).__name__}: {error}"
            time.sleep(0.1)
print("peer", reach(places[1 - index]), flush=True)
for place in sys.argv[1:]:
    print("outside", place, reach(place, 0.0), flush=True)
print("name", socket.gethostname(), flush=True)
print("ready", places[index], flush=True)
server.settimeout(30.0)
connections = [server.accept()[0].recv(1)]
"""


def run(
    hosts: PrivateNetwork, script: str, *arguments: str, folder: Path, output: Callable[[str], None]
) -> int:
    """Run a script in two tasks on hosts; return the cluster's exit code."""
    command = [sys.executable, "-c", script, *arguments]
    return run_local_cluster(command, workers=2, folder=folder, hosts=hosts, output=output)


def own_addresses() -> set[str]:
    """Return the IPv4 addresses of this machine."""
    found = (address for each in psutil.net_if_addrs().values() for address in each)
    return {address.address for address in found if address.family == socket.AF_INET}


def test_tasks_reach_each_other_and_nothing_else(tmp_path):
    lines: list[str] = []
    with socket.create_server(("0.0.0.0", 0)) as outside, Hosts(NAMES) as hosts:
        places = [f"{address}:{outside.getsockname()[1]}" for address in own_addresses()]
        code = run(hosts, GREET, *places, folder=tmp_path, output=lines.append)
    assert code == 0, lines
    assert {"[worker:0] peer True", "[worker:1] peer True"} <= set(lines)
    answers = [line for line in lines if "] outside " in line]
    assert len(answers) == 2 * len(places)
    assert not [line for line in answers if line.endswith(" True")]
    assert {"[worker:0] name worker-0", "[worker:1] name worker-1"} <= set(lines)


@pytest.mark.parametrize("network", [lambda: Hosts(NAMES), PrivateNetwork])
def test_no_port_of_a_host_answers_from_this_machine(network, tmp_path):
    lines: list[str] = []
    answered = []

    def output(line: str) -> None:
        lines.append(line)
        if found := re.search(r"ready (\S+):(\d+)", line):
            # At its own address only through the loopback device: this machine may have a route elsewhere.
            tried = [(found[1], b"lo"), *((address, b"") for address in own_addresses())]
            answered.extend((place, connects(place, int(found[2]), device)) for place, device in tried)

    with network() as hosts:
        assert not {f"{name.replace(':', '-')}" for name in NAMES} & set(psutil.net_if_addrs())
        run(hosts, GREET, folder=tmp_path, output=output)
    assert len(answered) >= 2 * len(NAMES), lines
    assert {"[worker:0] peer True", "[worker:1] peer True"} <= set(lines)
    assert not [place for place, answer in answered if answer]


def connects(host: str, port: int, device: bytes) -> bool:
    with socket.socket() as client:
        if device:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        client.settimeout(0.5)
        return client.connect_ex((host, port)) == 0


SEND = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
index, places = config["task"]["index"], config["cluster"]["worker"]
host, port = places[0].split(":")
if index == 0:
    connection = socket.create_server((host, int(port))).accept()[0]
    began, size = time.monotonic(), 0
    while data := connection.recv(1 << 16):
        size += len(data)
    print("rate", 8 * size / (time.monotonic() - began), flush=True)
else:
    end = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection((host, int(port)), 1.0)
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
    connection.sendall(bytes(1_500_000))
    connection.close()
"""


def test_a_link_is_no_faster_than_its_rate(tmp_path):
    lines: list[str] = []
    with Hosts(NAMES, "10mbit") as hosts:
        run(hosts, SEND, folder=tmp_path, output=lines.append)
    rate = float(next(line for line in lines if "] rate " in line).split()[-1])
    assert 1e6 < rate < 1.15e7


HOLD = """
import sys, time
from labkit.cluster.hosts import Hosts
with Hosts(["worker:0", "worker:1"]) as hosts:
    print(hosts.bridge, flush=True)
    time.sleep(60)
"""


def in_namespaces(seen: set[str]) -> list[int]:
    """Return the processes in the network namespaces ``seen``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/net") in seen:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_nothing_is_left_when_the_launcher_is_killed():
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    seen = {os.readlink(f"/proc/{child.pid}/ns/net") for child in psutil.Process(holder.pid).children()}
    assert len(seen) == 3 and os.readlink("/proc/self/ns/net") not in seen
    holder.send_signal(signal.SIGKILL)
    holder.wait(SECONDS)
    end = time.monotonic() + SECONDS
    while in_namespaces(seen):
        assert time.monotonic() < end, in_namespaces(seen)
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_makes_hosts_in_a_user_namespace():
    script = (
        "import os, subprocess\n"
        "from labkit.cluster.hosts import Hosts\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with Hosts(['worker:0', 'worker:1'], '100mbit') as hosts:\n"
        "    command = [*hosts.entering('worker:0'), 'ip', '-o', 'address', 'show', 'eth0']\n"
        "    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "198.18.0.1/24" in done.stdout, done.stderr


def test_a_machine_without_namespaces_or_without_their_command_says_so(tmp_path, monkeypatch):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    for path, said in (
        (f"{tmp_path}:{os.environ['PATH']}", "root or user namespaces.*Operation not permitted"),
        (str(tmp_path), "command ip; install the package iproute2"),
    ):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(InputError, match=said):
            Hosts(NAMES).__enter__()


@pytest.mark.parametrize(
    "rate", ["100", "fast", "0mbit", "-1mbit", "1e3mbit", "100 mbit", "1000gbit", "1bit"]
)
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(InputError, match="--link is .*allowed: 10kbit to 100gbit"):
        check_link(rate)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.alone
def test_a_cluster_of_hosts_trains_every_step_once(tmp_path, shapes):
    run_directory = RunDirectory(tmp_path / "run")
    training = ["train", "--sync", "--dataset", "shapes", "--num-layers", "8", "--train-batch-size", "16",
                "--train-steps", "10", "--validate-every-steps", "0", "--no-evaluate-test",
                "--num-gpus", "0", "--job-dir", str(run_directory.path)]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "cluster", "local", "--hosts", "--link", "1gbit", "--", *training],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    reader = read_metrics(run_directory)
    assert [row["step"] for row in reader.split("train")] == list(range(1, 11))
    heartbeats = read_heartbeats(run_directory.cluster_path).values()
    assert {each.host for each in heartbeats} == {"worker-0", "worker-1"}
    assert {each.address.split(":")[0] for each in heartbeats} == {"198.18.0.1", "198.18.0.2"}
