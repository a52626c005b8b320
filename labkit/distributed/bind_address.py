"""Make TensorFlow's servers listen on one address: redirect the ``bind`` calls of its libraries.

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

from labkit.errors import InputError
from labkit.startup.quiet_import import import_tensorflow

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
    ips = [(ip.version == 6 and ip.ipv4_mapped) or ip for ip in map(ipaddress.ip_address, texts)]
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


# ---- the pointers through which loaded libraries call imported functions, for 64-bit ELF (System V ABI)

# Relocation types that store a symbol's address in 8 bytes (GLOB_DAT, JUMP_SLOT and the plain 64-bit one),
# by platform.machine().
RELOCATIONS = {"x86_64": (6, 7, 1), "aarch64": (1025, 1026, 257)}

# Tags of the dynamic section and program header types, from <elf.h>.
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_STRSZ, DT_JMPREL = 2, 5, 6, 7, 8, 10, 23
PT_DYNAMIC = 2
SYMBOL_BYTES = 24  # sizeof(Elf64_Sym); its first 4 bytes are the name's offset in the string table


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


def loaded_libraries(package_file: str) -> list[tuple[int, int]]:
    """Return (load address, address of the dynamic section) of each loaded library of a package.

    Args:
        package_file: the package's ``__file__``.
    """
    # The loader reports paths with ".." in them, and unresolved ones where packages are symbolic links.
    folder = Path(os.path.abspath(package_file)).parent
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


def import_entries(base: int, dynamic: int, function: bytes) -> Iterator[int]:
    """Yield the addresses of the pointers to ``function`` of the library that is loaded at ``base``."""
    tags = _dynamic_section(base, dynamic)
    strings = _array(tags[DT_STRTAB], tags[DT_STRSZ], ctypes.c_uint8)
    for table, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        if not tags.get(size):
            continue
        # Elf64_Rela: offset, symbol number and type, addend. TensorFlow's libraries have a million of them.
        where, info, _ = _array(tags[table], tags[size], ctypes.c_uint64).reshape(-1, 3).T
        entries = np.flatnonzero(np.isin(info & 0xFFFFFFFF, RELOCATIONS[platform.machine()]))
        if not entries.size:
            continue
        numbers = info[entries] >> 32
        symbols = _array(tags[DT_SYMTAB], SYMBOL_BYTES * (int(numbers.max()) + 1), ctypes.c_uint32)
        names = symbols.reshape(-1, SYMBOL_BYTES // 4)[numbers, 0]
        for index, character in enumerate(function + b"\0"):
            matches = strings[np.minimum(names + index, strings.size - 1)] == character
            entries, names = entries[matches], names[matches]
        yield from (base + offset for offset in where[entries].tolist())


def _array(address: int, num_bytes: int, kind: Any) -> np.ndarray:
    """Return memory of this process as a NumPy array of a ctypes type, without a copy."""
    return np.ctypeslib.as_array((kind * (num_bytes // ctypes.sizeof(kind))).from_address(address))


def _dynamic_section(base: int, dynamic: int) -> dict[int, int]:
    """Return the value of each tag; for tables, their address in this process."""
    tags: dict[int, int] = {}
    while tag := ctypes.c_int64.from_address(dynamic).value:
        tags[tag] = ctypes.c_uint64.from_address(dynamic + 8).value
        dynamic += 16
    for table in (DT_STRTAB, DT_SYMTAB, DT_RELA, DT_JMPREL):
        # glibc has already added the load address, other C libraries have not.
        if table in tags and tags[table] < base:
            tags[table] += base
    return tags


def write_pointer(where: int, value: int | None) -> None:
    """Store a pointer, even in a page that the loader made read-only after relocation (RELRO)."""
    pointer = ctypes.c_void_p.from_address(where)
    if "w" in _permissions(where):
        pointer.value = value
        return
    _protect(where, mmap.PROT_READ | mmap.PROT_WRITE)
    pointer.value = value
    _protect(where, mmap.PROT_READ)


def _permissions(where: int) -> str:
    """Return the permissions of the memory at an address, such as ``r--p``."""
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
