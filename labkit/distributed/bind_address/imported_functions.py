"""Find and change the pointers through which loaded shared libraries call imported functions.

For 64-bit ELF as described in the System V ABI (chapter 5) and its supplements for x86-64 and AArch64.
"""

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RELOCATIONS", "import_entries", "loaded_libraries", "write_pointer"]

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
