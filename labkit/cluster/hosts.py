"""Hosts of a cluster on one machine: network namespaces with addresses of their own, joined by a bridge.

The bridge has a namespace of its own, too, and no namespace has a route elsewhere. So nothing outside reaches
the servers of the cluster, and they reach nothing outside. Each namespace is held open by a process that
ends with this one, even if this one is killed, and the kernel removes a namespace with its last process. So
nothing has to be taken down. A namespace has a host name as well; files and process ids are the machine's.

Needs Linux, some commands (``packages``), and root or user namespaces.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import ClassVar, Self

from labkit.errors import InputError

# RFC 2544 sets 198.18.0.0/15 aside for tests of networks: no site and no provider uses it.
PREFIX, MOST_HOSTS = "198.18.0.", 250
PORT = 2222  # of the first start; each task has a host of its own
SECONDS = 30.0  # for a command that takes milliseconds
RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}  # bits a second
QUEUE_SECONDS = 0.1  # that a shaped link holds back before it drops packets
BURST_SECONDS = 0.004  # a tick of the slowest usual kernel clock, 250 Hz: a shaped link sends once a tick
SMALLEST_BURST = 16_000  # bytes; a packet must fit


def is_host_address(address: str) -> bool:
    """Return whether ``address`` is one that ``Hosts`` gives."""
    return address.startswith(PREFIX)


def check_link(rate: str | None) -> float | None:
    """Return the bits a second that a rate such as ``100mbit`` names. Raises InputError for anything else."""
    if rate is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(kbit|mbit|gbit)", rate)
    bits = float(found[1]) * RATES[found[2]] if found else 0.0
    if not 1e4 <= bits <= 1e11:
        raise InputError(f"--link is {rate!r}; allowed: 10kbit to 100gbit, such as 100mbit")
    return bits


def why_no_hosts() -> str | None:
    """Return why this machine can't make hosts, one line; None if it can."""
    try:
        with Hosts(["worker:0"], "1gbit"):
            return None
    except InputError as error:
        return str(error)


class PrivateNetwork:
    """A network for the processes of a cluster, which no other process of this machine reaches.

    Use it in a ``with`` block. What runs in it reaches nothing else, either. Raises InputError, when entered,
    if this machine can't make network namespaces.
    """

    packages: ClassVar = {"iproute2": ("ip",), "util-linux": ("unshare", "nsenter")}
    _namespaces: tuple[str, ...] = ("--net",)

    def __init__(self) -> None:
        self._keepers: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        for package, commands in self.packages.items():
            if missing := [command for command in commands if shutil.which(command) is None]:
                raise InputError(
                    f"network namespaces need the command {missing[0]}; install the package {package}"
                )
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for keeper in self._keepers.values():
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                keeper.wait(SECONDS)
            except subprocess.TimeoutExpired:
                keeper.kill()

    def entering(self, name: str) -> list[str]:
        """Return the words in front of a command that run it where a task is."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        keeper = self._keepers.get(name, self._keepers[""])
        return ["nsenter", "--target", str(keeper.pid), *user, *self._namespaces]

    def namespaces(self, name: str) -> list[str]:
        """Return the files of the namespaces in which a task is, in the order in which they are entered."""
        keeper = self._keepers.get(name, self._keepers[""])
        kinds = ["user"] * (os.geteuid() != 0) + [option.strip("-") for option in self._namespaces]
        return [f"/proc/{keeper.pid}/ns/{kind}" for kind in kinds]

    def _make(self) -> None:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._keep("", ["unshare", *user, *self._namespaces])
        self._on("", "ip", "link", "set", "lo", "up")

    def _keep(self, name: str, command: Sequence[str]) -> None:
        """Start the process that holds a namespace open: it reads from a pipe until this process ends."""
        keeper = subprocess.Popen(
            [*command, "sh", "-c", "echo; exec cat > /dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tasks, which need the network until they have saved
        )
        self._keepers[name] = keeper
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        if keeper.stdout.readline() != "\n":
            raise InputError(
                "network namespaces need root or user namespaces; this machine says: "
                f"{keeper.stderr.read().strip()[:200]}"
            )

    def _on(self, name: str, *command: str) -> None:
        done = subprocess.run(
            [*self.entering(name), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise InputError(
                f"network namespaces: this machine refused {' '.join(command)!r}: {done.stderr.strip()[:200]}"
            )


class Hosts(PrivateNetwork):
    """Hosts on this machine, one for each name. Use it in a ``with`` block.

    Args:
        names: of the tasks, such as ``worker:1``, whose host is named ``worker-1``.
        link: rate of each host's link in both directions, such as ``100mbit``; None: as fast as it goes.

    Raises InputError, when entered, if this machine can't make network namespaces.
    """

    packages: ClassVar = {**PrivateNetwork.packages, "iproute2": ("ip", "tc"), "hostname": ("hostname",)}
    _namespaces = ("--net", "--uts")

    def __init__(self, names: Sequence[str], link: str | None = None) -> None:
        if len(names) > MOST_HOSTS:
            raise InputError(f"--hosts with {len(names)} tasks; allowed: up to {MOST_HOSTS}")
        super().__init__()
        self._bits = check_link(link)
        self._names = list(names)
        self._starts = 0

    @property
    def addresses(self) -> dict[str, str]:
        """Return the IP address of each task's host, by the task's name."""
        return {name: f"{PREFIX}{number}" for number, name in enumerate(self._names, 1)}

    @property
    def bridge(self) -> int:
        """Return the id of a process in the namespace of the bridge, whose ports are named as the hosts."""
        return self._keepers[""].pid

    def describe(self) -> str:
        """Return the hosts and their addresses, and how to look at the network."""
        hosts = ", ".join(f"{name} at {address}" for name, address in self.addresses.items())
        return f"hosts: {hosts}; their network: {' '.join(self.entering(''))} bridge link"

    def next_port(self) -> int:
        """Return the port of all tasks for the next start of the cluster."""
        self._starts += 1
        return PORT + self._starts - 1

    def _make(self) -> None:
        super()._make()
        root = os.geteuid() == 0
        self._on("", "ip", "link", "add", "bridge", "type", "bridge")
        self._on("", "ip", "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            port = name.replace(":", "-")
            self._keep(name, [*([] if root else self.entering("")), "unshare", "--net", "--uts"])
            other_end = ["peer", "name", "eth0", "netns", str(self._keepers[name].pid)]
            self._on("", "ip", "link", "add", port, "type", "veth", *other_end)
            self._on("", "ip", "link", "set", port, "master", "bridge", "up")
            self._on(name, "hostname", port)
            self._on(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self._on(name, "ip", "link", "set", "eth0", "up")
            self._on(name, "ip", "link", "set", "lo", "up")
            if self._bits:
                self._on("", *_shaping(port, self._bits))
                self._on(name, *_shaping("eth0", self._bits))


def _shaping(device: str, bits: float) -> Iterable[str]:
    burst = max(SMALLEST_BURST, int(bits / 8 * BURST_SECONDS))
    limit = burst + int(bits / 8 * QUEUE_SECONDS)
    rate = f"{bits:.0f}bit"
    return ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", f"{burst}b",
            "limit", f"{limit}b"]  # fmt: skip
