"""Faults of the network between the hosts of ``labkit cluster local --hosts``."""

import re
import subprocess

from tests.faults.launched import Cluster, until

__all__ = ["HOSTS", "Network"]

HOSTS = r"^\[cluster\] hosts: "  # the line of a cluster whose hosts are there

NO_PACKET_FITS = ("rate", "8bit", "burst", "1", "limit", "1")


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
