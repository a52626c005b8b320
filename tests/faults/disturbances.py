"""Faults of the network between hosts, of a shared folder, of a clock; and a task that hangs."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.launched import Cluster, until

HOSTS = r"^\[cluster\] hosts: "  # the line of a cluster whose hosts are there
MOST_FROZEN = 60  # seconds after which a frozen folder thaws whatever has become of the test
NO_PACKET_FITS = ("rate", "8bit", "burst", "1", "limit", "1")

OTHER_CLOCK = """
import json, os, sys, time
task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task")
if task == {"type": "worker", "index": 1}:
    now = time.time
    time.time = lambda: now() + %d
    print("this task has a clock of its own", file=sys.stderr)
"""

# Each thread of TensorFlow waits for ever within a signal's handler; Python's threads go on, and with them
# the heartbeats. The file is removed first, so that the process that replaces this one does not hang.
HANG = """
import ctypes, json, os, signal, sys, threading, time

def hang(file):
    while not os.path.exists(file):
        time.sleep(0.05)
    os.unlink(file)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGUSR2, ctypes.cast(libc.pause, ctypes.c_void_p))
    ours = {thread.native_id for thread in threading.enumerate()}
    threads = {int(name) for name in os.listdir("/proc/self/task")} - ours
    for thread in threads:
        libc.tgkill(os.getpid(), thread, signal.SIGUSR2)
    print(f"{len(threads)} threads hang", file=sys.stderr, flush=True)

task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task")
if task == {"type": "worker", "index": 1} and sys.orig_argv[1:5] == ["-P", "-m", "labkit", "train"]:
    threading.Thread(target=hang, args=[%r], daemon=True).start()
"""


class Network:
    """The bridge of a cluster's hosts. Its ports are named as the hosts: ``worker-1``."""

    def __init__(self, cluster: Cluster) -> None:
        line = until(lambda: cluster.said(HOSTS), cluster.text)
        found = re.search(r"network: (nsenter .*) bridge link$", line.text)
        assert found, line.text
        self._entering = found[1].split()

    def cut(self, host: str) -> None:
        """Take a host's link away, in both directions."""
        self._do("ip", "link", "set", host, "down")

    def join(self, host: str) -> None:
        """Give a host its link back."""
        self._do("ip", "link", "set", host, "up")

    def hear_nothing(self, host: str) -> None:
        """Drop all packets to a host; its own ones still arrive."""
        self._do("tc", "qdisc", "replace", "dev", host, "root", "tbf", *NO_PACKET_FITS)

    def slow_down(self, host: str, rate: str) -> None:
        """Limit what a host receives to a rate such as ``1mbit``."""
        self._do("tc", "qdisc", "replace", "dev", host, "root", "tbf", "rate", rate,
                 "burst", "16kb", "latency", "200ms")  # fmt: skip

    def hear_again(self, host: str) -> None:
        """Undo ``hear_nothing`` and ``slow_down``."""
        self._do("tc", "qdisc", "del", "dev", host, "root")

    def part(self, *hosts: str, apart: bool = True) -> None:
        """Let these hosts reach all others, but not each other."""
        for host in hosts:
            self._do("bridge", "link", "set", "dev", host, "isolated", "on" if apart else "off")

    def _do(self, *command: str) -> None:
        subprocess.run([*self._entering, *command], check=True, timeout=30.0)


@contextmanager
def disk_at(path: Path) -> Iterator[Path]:
    """Mount a small disk of its own at ``path``; needs root."""
    path.mkdir()
    image = path.with_suffix(".img")
    with open(image, "wb") as file:
        file.truncate(512 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", image, path], check=True, timeout=60)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, timeout=60)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Let every write to a disk wait, as on a file server that stalls. Reading goes on."""
    thaw = ["fsfreeze", "--unfreeze", str(disk)]
    # Whatever writes meanwhile can't be killed, this test among it.
    guard = subprocess.Popen(["bash", "-c", f'sleep {MOST_FROZEN}; exec "$@"', "bash", *thaw])
    try:
        subprocess.run(["fsfreeze", "--freeze", disk], check=True, timeout=MOST_FROZEN + 30)
        yield
    finally:
        guard.kill()
        guard.wait()
        subprocess.run(thaw, check=True, timeout=60)


def make_read_only(disk: Path) -> None:
    """Let a disk refuse to be written from now on, as its file system does behind an error of the disk."""
    subprocess.run(["mount", "-o", "remount,abort", disk], check=True, timeout=60)


def mount_again(disk: Path) -> None:
    """Check a disk that nothing uses, and mount it to be written."""
    subprocess.run(["umount", disk], check=True, timeout=60)
    image = disk.with_suffix(".img")
    checked = subprocess.run(["fsck.ext4", "-p", image], timeout=60, check=False)
    assert checked.returncode in (0, 1), "1: errors were corrected"
    subprocess.run(["mount", "-o", "loop", image, disk], check=True, timeout=60)


def other_clock(folder: Path, hours: int) -> Path:
    """Return a folder for PYTHONPATH that puts the clock of worker:1 forward, as Python tells the time."""
    made = folder / "clock"
    made.mkdir()
    (made / "sitecustomize.py").write_text(OTHER_CLOCK % (3600 * hours))
    return made


def hanging(folder: Path) -> tuple[Path, Path]:
    """Return a folder for PYTHONPATH, and a file: as soon as it is there, worker:1 lives and does nothing."""
    made, trigger = folder / "hang", folder / "hang-now"
    made.mkdir()
    (made / "sitecustomize.py").write_text(HANG % str(trigger))
    return made, trigger
