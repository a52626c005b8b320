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
import mmap
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from labkit.errors import InputError
from labkit.notices import import_tensorflow

__all__ = ["listen_on", "listening_addresses"]

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

WAY_OUT = "give an address of this machine, or 0.0.0.0 for all of them"
SECONDS_TO_REACH_ITSELF = 5.0  # a connection of this machine to itself takes less than a millisecond

# Relocations that store a symbol's address in 8 bytes: GLOB_DAT, JUMP_SLOT and the plain 64-bit one, by
# the names that platform.machine() gives.
RELOCATIONS = {"x86_64": (6, 7, 1), "aarch64": (1025, 1026, 257)}

# Tags of the dynamic section and program header types, from <elf.h>.
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRSZ, DT_JMPREL = 2, 5, 6, 7, 8, 10, 23
PT_DYNAMIC = 2
SYMBOL_BYTES = 24  # sizeof(Elf64_Sym); its first four are the name's place in the string table

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


# ---- Where the libraries' pointers to bind are


def _redirect_tensorflow(address: str) -> None:
    """Let every loaded library of TensorFlow call :func:`_bind`; those that do already stay so."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in RELOCATIONS or sys.maxsize < 2**32:
        raise _cannot_be_held(
            address, f"labkit can change that on 64-bit Linux only, not on {system} {machine}"
        )
    import_tensorflow()
    entries = [entry for base, dynamic in _tensorflow_libraries() for entry in _bind_entries(base, dynamic)]
    if not entries:
        raise _cannot_be_held(address, "its libraries have no call of bind that labkit could change")
    try:
        for entry in entries:
            _write_pointer(entry, ctypes.cast(_bind_callback, ctypes.c_void_p).value)
    except OSError as error:
        raise _cannot_be_held(address, f"its libraries can't be changed: {error}") from error


def _cannot_be_held(address: str, reason: str) -> InputError:
    return InputError(
        f"--bind {address}: TensorFlow's servers would listen on every address of this machine ({reason}); "
        "--bind 0.0.0.0 accepts that"
    )


class _ProgramHeader(ctypes.Structure):
    """``Elf64_Phdr``."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("offset", "vaddr", "paddr", "filesz", "memsz", "align")),
    ]


class _LoadedObject(ctypes.Structure):
    """The first fields of ``struct dl_phdr_info``."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.POINTER(_ProgramHeader)),
        ("num_headers", ctypes.c_uint16),
    ]


def _tensorflow_libraries() -> list[tuple[int, int]]:
    """Return (load address, address of the dynamic section) of each loaded library of the package."""
    import tensorflow as tf

    # The loader's names hold ".." and stay unresolved where packages are symbolic links to a cache.
    folder = Path(os.path.abspath(tf.__file__)).parent
    folders = {folder, folder.resolve()}
    found = []

    def visit(info, size, data):
        loaded = info.contents
        name = os.fsdecode(loaded.name)  # empty for the program itself
        path = Path(os.path.normpath(name))
        if os.path.isabs(name) and folders & {*path.parents, *path.resolve().parents}:
            headers = loaded.headers[: loaded.num_headers]
            found.extend((loaded.base, loaded.base + h.vaddr) for h in headers if h.type == PT_DYNAMIC)
        return 0

    visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CDLL(None).dl_iterate_phdr(visitor(visit), None)
    return found


def _bind_entries(base: int, dynamic: int) -> Iterator[int]:
    """Yield the addresses of the pointers to ``bind`` of the library that is loaded at ``base``."""
    tags = _dynamic_section(base, dynamic)
    strings = _array(tags[DT_STRTAB], tags[DT_STRSZ], ctypes.c_uint8)
    for table, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        if not tags.get(size):
            continue
        # Elf64_Rela: where; symbol number and kind; addend. TensorFlow's libraries have a million of them.
        where, info, _ = _array(tags[table], tags[size], ctypes.c_uint64).reshape(-1, 3).T
        entries = np.flatnonzero(np.isin(info & 0xFFFFFFFF, RELOCATIONS[platform.machine()]))
        if not entries.size:
            continue
        numbers = info[entries] >> 32
        symbols = _array(tags[DT_SYMTAB], SYMBOL_BYTES * (int(numbers.max()) + 1), ctypes.c_uint32)
        names = symbols.reshape(-1, SYMBOL_BYTES // 4)[numbers, 0]
        for place, character in enumerate(b"bind\0"):
            matches = strings[np.minimum(names + place, strings.size - 1)] == character
            entries, names = entries[matches], names[matches]
        yield from (base + offset for offset in where[entries].tolist())


def _array(address: int, num_bytes: int, kind: Any) -> np.ndarray:
    """Return memory of this process as a NumPy array of a ctypes type, not copied."""
    return np.ctypeslib.as_array((kind * (num_bytes // ctypes.sizeof(kind))).from_address(address))


def _dynamic_section(base: int, dynamic: int) -> dict[int, int]:
    """Return the value of each tag; tables as addresses in this process."""
    tags: dict[int, int] = {}
    while tag := ctypes.c_int64.from_address(dynamic).value:
        tags[tag] = ctypes.c_uint64.from_address(dynamic + 8).value
        dynamic += 16
    for table in (DT_STRTAB, DT_SYMTAB, DT_RELA, DT_JMPREL):
        # glibc has added the load address already, other C libraries haven't.
        if table in tags and tags[table] < base:
            tags[table] += base
    return tags


def _write_pointer(where: int, value: int | None) -> None:
    """Store a pointer, also in a page that the loader has made read-only after relocation (RELRO)."""
    pointer = ctypes.c_void_p.from_address(where)
    if "w" in _permissions(where):
        pointer.value = value
        return
    _protect(where, mmap.PROT_READ | mmap.PROT_WRITE)
    pointer.value = value
    _protect(where, mmap.PROT_READ)


def _permissions(where: int) -> str:
    """Return the permissions of the memory at an address, as in ``r--p``."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= where < end:
            return permissions
    raise OSError(errno.EFAULT, f"no memory at {where:#x}")


def _protect(where: int, protection: int) -> None:
    page = ctypes.c_void_p(where & -mmap.PAGESIZE)
    if ctypes.CDLL(None, use_errno=True).mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), protection):
        raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")
