"""The addresses that a process listens on, read from the operating system, and a port for one."""

import ipaddress
import socket

import psutil


def listening_addresses(pid: int | None = None) -> list[tuple[str, int]]:
    """Return (IP address, port) of each listening TCP socket of a process (None: this one), sorted.

    ``::`` is every address, including the IPv4 ones. An IPv4 address on an IPv6 socket is returned as an
    IPv4 address.
    """
    connections = psutil.Process(pid).net_connections("tcp")
    listening = [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]
    return sorted((_plain(ip), port) for ip, port in listening)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _plain(text: str) -> str:
    ip = ipaddress.ip_address(text)
    return str((ip.version == 6 and ip.ipv4_mapped) or ip)
