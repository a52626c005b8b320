"""Which address TensorFlow's servers listen on.

TensorFlow's gRPC servers take any connection and run what it sends, and they listen on every address of
the machine: ``GrpcServer`` asks for ``0.0.0.0:<port>``, whatever host the cluster names, and has no option
for it. :func:`listen_on` holds them to one address, without a compiler and without rights on the machine.

A shared library calls ``bind`` through a pointer of its own, an entry of its global offset table (GOT) that
the dynamic linker fills in. The library's relocations (System V ABI, chapter 5, and its supplements for
x86-64 and AArch64) say where that entry is. :func:`listen_on` points the entries of TensorFlow's libraries
to :func:`_bind`, which puts the wanted address in place of the wildcard and calls the C library's ``bind``.
Ports, socket options and binds to any other address stay as they are, and so do all other libraries.
"""

import ctypes
import errno
import ipaddress
import platform
import socket
import struct
import sys
from typing import Any

import psutil

from labkit.distributed.bind_address.imported_functions import (
    RELOCATIONS,
    import_entries,
    loaded_libraries,
    write_pointer,
)
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow

__all__ = ["listen_on", "listening_addresses"]

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

WAY_OUT = "give an address of this machine, or 0.0.0.0 for all of them"
SECONDS_TO_REACH_ITSELF = 5.0  # a connection of this machine to itself takes less than a millisecond

IPV4_WILDCARD = bytes(4)
IPV4_MAPPED = bytes(10) + b"\xff\xff"  # how an IPv6 socket spells an IPv4 address: ::ffff:a.b.c.d
IPV6_WILDCARDS = (bytes(16), IPV4_MAPPED + IPV4_WILDCARD)

_wanted: IPAddress | None = None  # None: TensorFlow's own choice, every address


def listen_on(address: str) -> None:
    """Let the servers that TensorFlow starts in this process from now on listen on ``address`` alone.

    Args:
        address: an IP address or a host name of this machine; of a name with several addresses, the first
            IPv4 one. ``0.0.0.0`` and ``::`` leave TensorFlow as it is: every address. A second call replaces
            the first one's address; servers that run already stay where they are.

    Raises:
        InputError: ``address`` isn't this machine's, or this system gives no way to hold TensorFlow to it
            (anything but Linux with glibc on x86_64 or aarch64).
    """
    global _wanted
    ip = _resolve(address)
    if ip.is_unspecified:
        _wanted = None
        return
    _check_is_ours(address, ip)
    _redirect_tensorflow(address)
    _wanted = ip


def listening_addresses(pid: int | None = None) -> list[tuple[str, int]]:
    """Return (IP address, port) of each TCP socket that a process listens on, sorted.

    Read from the system, not from what anybody asked for. ``::`` is every address, IPv4 ones too; an IPv4
    address on an IPv6 socket is returned as an IPv4 address.

    Args:
        pid: the process; this one when None.

    Raises:
        psutil.NoSuchProcess: there is no such process.
        psutil.AccessDenied: it is another user's.
    """
    connections = psutil.Process(pid).net_connections("tcp")
    listening = [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]
    return sorted((str(_unmapped(ipaddress.ip_address(ip))), port) for ip, port in listening)


def _unmapped(ip: IPAddress) -> IPAddress:
    return (ip.version == 6 and ip.ipv4_mapped) or ip


def _resolve(address: str) -> IPAddress:
    try:
        entries = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--bind {address}: neither an address nor a known host name; {WAY_OUT}") from error
    # An IPv6 address of one link is an address only together with that link's number, the last of four.
    found: list[tuple[Any, ...]] = [entry[4] for entry in entries]
    texts = [f"{host}%{rest[-1]}" if len(rest) == 3 and rest[-1] else host for host, *rest in found]
    ips = [_unmapped(ipaddress.ip_address(text)) for text in texts]
    return min(ips, key=lambda ip: ip.version)  # min keeps the order within a version


def _check_is_ours(address: str, ip: IPAddress) -> None:
    """Listen there and connect: bind alone takes broadcast and multicast addresses too."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind(socket.getaddrinfo(str(ip), 0, family, socket.SOCK_STREAM)[0][4])
            server.listen()
            client.settimeout(SECONDS_TO_REACH_ITSELF)
            client.connect(server.getsockname())
    except OSError as error:
        raise InputError(f"--bind {address}: not this machine's ({error}); {WAY_OUT}") from error


# ---- What runs in place of bind


def _redirected(sockaddr: bytes, wanted: IPAddress) -> bytes:
    """Return a ``struct sockaddr`` of Linux with ``wanted`` in place of the wildcard address.

    Port and flow label stay; any other address and any other family are returned as they are.

    Raises:
        OSError: EADDRNOTAVAIL for an IPv4 socket where an IPv6 address is wanted. It would have to listen on
            something else; gRPC opens one where it finds no IPv6.
    """
    family = struct.unpack_from("=H", sockaddr)[0] if len(sockaddr) >= 2 else None
    if family == socket.AF_INET and sockaddr[4:8] == IPV4_WILDCARD:
        if wanted.version == 6:
            raise OSError(errno.EADDRNOTAVAIL, "an IPv4 socket takes no IPv6 address")
        return sockaddr[:4] + wanted.packed + sockaddr[8:]
    if family == socket.AF_INET6 and sockaddr[8:24] in IPV6_WILDCARDS:
        if wanted.version == 4:
            return sockaddr[:8] + IPV4_MAPPED + wanted.packed + sockaddr[24:]
        scope = struct.pack("=I", int(wanted.scope_id or 0))
        return sockaddr[:8] + wanted.packed + scope
    return sockaddr


_SIGNATURE = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)

# With use_errno, ctypes hands errno from the call inside a callback on to the callback's caller.
_libc_bind = ctypes.CFUNCTYPE(*_SIGNATURE, use_errno=True)(("bind", ctypes.CDLL(None)))


def _bind(descriptor: int, address: int | None, length: int) -> int:
    """``bind(2)``, with the wildcard address replaced. gRPC may call it from any thread."""
    try:
        wanted = _wanted
        if wanted is None or address is None:
            return _libc_bind(descriptor, address, length)
        sockaddr = _redirected(ctypes.string_at(address, length), wanted)
        return _libc_bind(descriptor, sockaddr, len(sockaddr))
    except BaseException as error:
        # Nothing may leave a callback, Ctrl-C neither: C would read a result that nobody wrote, and a socket
        # that listens without a bind listens on every address.
        ctypes.set_errno(getattr(error, "errno", None) or errno.EADDRNOTAVAIL)
        return -1


# At module level: the libraries keep its address for the rest of the process's life.
_bind_callback = ctypes.CFUNCTYPE(*_SIGNATURE, use_errno=True)(_bind)


def _redirect_tensorflow(address: str) -> None:
    """Let every loaded library of TensorFlow call :func:`_bind`; those that do already stay so."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in RELOCATIONS or sys.maxsize < 2**32:
        raise _cannot_be_held(
            address, f"labkit can change that on 64-bit Linux only, not on {system} {machine}"
        )
    import_tensorflow()
    import tensorflow as tf

    entries = [
        entry
        for base, dynamic in loaded_libraries(tf.__file__)
        for entry in import_entries(base, dynamic, b"bind")
    ]
    if not entries:
        raise _cannot_be_held(address, "its libraries have no call of bind that labkit could change")
    try:
        for entry in entries:
            write_pointer(entry, ctypes.cast(_bind_callback, ctypes.c_void_p).value)
    except OSError as error:
        raise _cannot_be_held(address, f"its libraries can't be changed: {error}") from error


def _cannot_be_held(address: str, reason: str) -> InputError:
    return InputError(
        f"--bind {address}: TensorFlow's servers would listen on every address of this machine ({reason}); "
        "--bind 0.0.0.0 accepts that"
    )
