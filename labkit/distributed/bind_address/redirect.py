"""Redirect the ``bind`` calls of TensorFlow's libraries, so that its servers listen on one address.

TensorFlow's gRPC servers execute whatever a client sends, and they listen on every address of the machine:
``GrpcServer`` binds to ``0.0.0.0:<port>`` whatever host the cluster names, and has no option for it.
:func:`listen_on` restricts them to one address. It needs neither a compiler nor special privileges.

A shared library calls ``bind`` through a pointer in its global offset table (GOT), which the dynamic linker
fills in. The library's relocations (System V ABI, chapter 5, and its supplements for x86-64 and AArch64)
say where that pointer is. :func:`listen_on` sets the pointers of TensorFlow's libraries to :func:`_bind`,
which replaces the wildcard address by the chosen one and calls the C library's ``bind``. Ports, socket
options, binds to other addresses and all other libraries are unchanged.
"""

import ctypes
import errno
import ipaddress
import platform
import socket
import struct
import sys
from typing import Any

from labkit.distributed.bind_address.imported_functions import (
    RELOCATIONS,
    import_entries,
    loaded_libraries,
    write_pointer,
)
from labkit.errors import InputError
from labkit.startup.quiet_import import import_tensorflow

__all__ = ["listen_on"]

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

WAY_OUT = "give an address of this machine, or 0.0.0.0 for all of them"
SELF_CONNECT_TIMEOUT = 5.0  # seconds; a machine connects to itself in less than a millisecond

IPV4_WILDCARD = bytes(4)
IPV4_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address on an IPv6 socket: ::ffff:a.b.c.d
IPV6_WILDCARDS = (bytes(16), IPV4_MAPPED + IPV4_WILDCARD)

_wanted: IPAddress | None = None  # None: every address, as TensorFlow does by default


def listen_on(address: str) -> None:
    """Make TensorFlow servers started in this process from now on listen on ``address`` only.

    A second call changes the address for later servers; running ones keep theirs.

    Args:
        address: an IP address or a host name of this machine. For a name with several addresses the first
            IPv4 address is used. ``0.0.0.0`` and ``::`` mean every address.

    Raises:
        InputError: ``address`` does not belong to this machine, or this system is not supported (only Linux
            with glibc on x86_64 or aarch64 is).
    """
    global _wanted
    ip = _resolve(address)
    if ip.is_unspecified:
        _wanted = None
        return
    _check_is_ours(address, ip)
    _redirect_tensorflow(address)
    _wanted = ip


def _unmapped(ip: IPAddress) -> IPAddress:
    return (ip.version == 6 and ip.ipv4_mapped) or ip


def _resolve(address: str) -> IPAddress:
    try:
        entries = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--bind {address}: neither an IP address nor a known host name; {WAY_OUT}"
        ) from error
    # A link-local IPv6 address is complete only with its interface number, the last of four fields.
    found: list[tuple[Any, ...]] = [entry[4] for entry in entries]
    texts = [f"{host}%{rest[-1]}" if len(rest) == 3 and rest[-1] else host for host, *rest in found]
    ips = [_unmapped(ipaddress.ip_address(text)) for text in texts]
    return min(ips, key=lambda ip: ip.version)  # min keeps the order within a version


def _check_is_ours(address: str, ip: IPAddress) -> None:
    """Listen there and connect: ``bind`` alone also accepts broadcast and multicast addresses."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind(socket.getaddrinfo(str(ip), 0, family, socket.SOCK_STREAM)[0][4])
            server.listen()
            client.settimeout(SELF_CONNECT_TIMEOUT)
            client.connect(server.getsockname())
    except OSError as error:
        raise InputError(f"--bind {address}: not an address of this machine ({error}); {WAY_OUT}") from error


# ---- The replacement for bind


def _redirected(sockaddr: bytes, wanted: IPAddress) -> bytes:
    """Return a Linux ``struct sockaddr`` with the wildcard address replaced by ``wanted``.

    Port and flow label are kept. Other addresses and other address families are returned unchanged.

    Raises:
        OSError: EADDRNOTAVAIL for an IPv4 socket if ``wanted`` is an IPv6 address. (gRPC opens IPv4 sockets
            on machines without IPv6.)
    """
    family = struct.unpack_from("=H", sockaddr)[0] if len(sockaddr) >= 2 else None
    if family == socket.AF_INET and sockaddr[4:8] == IPV4_WILDCARD:
        if wanted.version == 6:
            raise OSError(errno.EADDRNOTAVAIL, "an IPv4 socket can't have an IPv6 address")
        return sockaddr[:4] + wanted.packed + sockaddr[8:]
    if family == socket.AF_INET6 and sockaddr[8:24] in IPV6_WILDCARDS:
        if wanted.version == 4:
            return sockaddr[:8] + IPV4_MAPPED + wanted.packed + sockaddr[24:]
        scope = struct.pack("=I", int(wanted.scope_id or 0))
        return sockaddr[:8] + wanted.packed + scope
    return sockaddr


_SIGNATURE = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)

# use_errno: the caller of the callback sees the errno that the C library's bind has set.
_libc_bind = ctypes.CFUNCTYPE(*_SIGNATURE, use_errno=True)(("bind", ctypes.CDLL(None)))


def _bind(descriptor: int, address: int | None, length: int) -> int:
    """``bind(2)`` with the wildcard address replaced. gRPC may call it from any thread."""
    try:
        wanted = _wanted
        if wanted is None or address is None:
            return _libc_bind(descriptor, address, length)
        sockaddr = _redirected(ctypes.string_at(address, length), wanted)
        return _libc_bind(descriptor, sockaddr, len(sockaddr))
    except BaseException as error:
        # No exception may leave a C callback, not even KeyboardInterrupt: C would read an undefined result,
        # and a socket that listens without a successful bind listens on every address.
        ctypes.set_errno(getattr(error, "errno", None) or errno.EADDRNOTAVAIL)
        return -1


# Never freed: the libraries keep its address until the process ends.
_bind_callback = ctypes.CFUNCTYPE(*_SIGNATURE, use_errno=True)(_bind)


def _redirect_tensorflow(address: str) -> None:
    """Make every loaded library of TensorFlow call :func:`_bind`; repeating this changes nothing."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in RELOCATIONS or sys.maxsize < 2**32:
        raise _unsupported(
            address, f"labkit can prevent that on 64-bit Linux only, not on {system} {machine}"
        )
    import_tensorflow()
    import tensorflow as tf

    entries = [
        entry
        for base, dynamic in loaded_libraries(tf.__file__)
        for entry in import_entries(base, dynamic, b"bind")
    ]
    if not entries:
        raise _unsupported(address, "no call of bind was found in its libraries")
    try:
        for entry in entries:
            write_pointer(entry, ctypes.cast(_bind_callback, ctypes.c_void_p).value)
    except OSError as error:
        raise _unsupported(address, f"its libraries can't be changed: {error}") from error


def _unsupported(address: str, reason: str) -> InputError:
    return InputError(
        f"--bind {address}: TensorFlow's servers would listen on every address of this machine ({reason}); "
        "to accept that, give --bind 0.0.0.0"
    )
