"""Open, read, lock and follow the files of a run, which may be somebody else's."""

import errno
import io
import json
import os
import stat
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from labkit.errors import InputError, reason_of

#: A number of steps or bytes, as float64 knows it too.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
LONGEST_LINE = 2**23  # bytes; a row of metrics has hundreds
KEPT_BYTES = 256  # of what was read last: they tell whether the file is still the same
_LARGE = 2**26  # bytes; larger files may have no hole, which would declare any size and take no space
_MOST_JSON = 2**26  # bytes; a certificate has 72 for each row


def open_run_file(path: str | Path, mode: str = "rb", **settings: Any) -> IO[Any]:
    """Open a file of a run, as ``open`` does. ``settings``: those of ``open``.

    A link could lead to any file of the reader's, and to open a pipe would wait for ever.

    Raises OSError if it is a link or no regular file, beside the reasons of ``open``.
    """
    return open(path, mode, opener=open_run_descriptor, **settings)


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading that may be a link, as in a data set. Raises OSError unless it is regular."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return open(_checked(descriptor, os.fspath(path), holes=True), "rb")


def open_run_descriptor(path: str, flags: int) -> int:
    """Open a file of a run, as ``os.open`` does. Raises OSError as ``open_run_file``."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, which labkit doesn't follow in a run", path) from None
        raise
    return _checked(descriptor, path)


def _checked(descriptor: int, path: str, *, holes: bool = False) -> int:
    """Return the descriptor of a regular file, without ``holes`` if it is large; else raise OSError."""
    found = os.fstat(descriptor)
    reason = errno.EINVAL, "it is no regular file"
    if stat.S_ISREG(found.st_mode):
        if holes or found.st_size <= _LARGE or os.lseek(descriptor, 0, os.SEEK_HOLE) >= found.st_size:
            os.lseek(descriptor, 0, os.SEEK_SET)
            return descriptor
        reason = errno.EINVAL, "it has a hole, where nothing was written"
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(*reason, path)


def check_regular(folder: str | Path) -> None:
    """Raise OSError unless ``folder`` is a folder with nothing but regular files, and neither is a link."""
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "it is a link, which labkit doesn't follow in a run", str(folder))
    for entry in os.scandir(folder):
        if not entry.is_file(follow_symlinks=False):
            raise OSError(errno.EINVAL, "it is no regular file", entry.path)


def parse_json(text: bytes) -> Any:
    """Return the value of JSON, which may hold NaN and infinities, as earlier versions wrote them.

    Raises ValueError if it isn't JSON, RecursionError if it is nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return json.loads(text)


def read_json(path: str | Path, kind: Any = dict[str, Any]) -> Any:
    """Return the JSON value in a file of a run as a ``kind``, which is any type that msgspec converts to.

    Raises FileNotFoundError if the file is missing, and InputError, which says what is wrong, if it can't be
    opened or holds something else.
    """
    try:
        with open_run_file(path) as file:
            text = file.read(_MOST_JSON + 1)
        if len(text) > _MOST_JSON:
            raise ValueError(f"it has more than {_MOST_JSON >> 20} MB")
        value = parse_json(text)
        if typing.get_origin(kind) is dict and not isinstance(value, dict):
            raise ValueError("it isn't a JSON object")
        return msgspec.convert(value, kind)
    except FileNotFoundError:
        raise
    except RecursionError:
        reason = "it is nested too deeply"
    except UnicodeDecodeError:
        reason = "it isn't text in UTF-8"
    except (OSError, ValueError) as error:
        reason = reason_of(error)
    raise InputError(f"{path} can't be read: {reason}")


def read_object(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run; empty if it is missing, damaged or none."""
    try:
        return dict(read_json(path))
    except (OSError, InputError):
        return {}


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is made if it is missing.

    Raises InputError if another process keeps it locked for ``seconds``.
    """
    import fcntl

    give_up = time.monotonic() + seconds
    with open_run_file(path, "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise InputError(f"{path} is locked by another process; end it and try again") from None
                time.sleep(0.02)
        yield


# ---- lines that another process appends ---------------------------------------------------------------


@dataclass(eq=False)
class AppendedLines:
    """Reads what was appended to ``path`` since the last call, up to the last newline.

    ``generation`` grows when the file turns out to be another one or to have been shortened: it is then read
    from its beginning, and what was read before no longer counts. ``caught_up`` tells whether the last call
    reached the end of the file, ``offset`` how many of its bytes were read, and ``size`` how many it had.
    """

    path: Path
    generation: int = 0
    caught_up: bool = False
    offset: int = 0
    size: int = 0
    _inode: int | None = None
    _tail: bytes = b""

    def read(self, max_bytes: int | None = None) -> bytes:
        """Return the whole lines that were appended since the last call; empty if there are none.

        A missing file has no lines; other errors are raised as OSError.

        Args:
            max_bytes: the most to read in one call, though a longer line is still read whole. None reads to
                the end.
        """
        try:
            with open_run_file(self.path) as file:
                found = os.fstat(file.fileno())
                inode, self.size = found.st_ino, found.st_size
                if self._inode is not None and not (inode == self._inode and self._is_same_file(file)):
                    self._restart()
                self._inode = inode
                file.seek(self.offset)
                data = file.read(-1 if max_bytes is None else max_bytes)
                while max_bytes and b"\n" not in data and len(data) < LONGEST_LINE:
                    more = file.read(LONGEST_LINE)
                    if not more:
                        break
                    data += more
                self.caught_up = not file.read(1)
        except FileNotFoundError:
            if self._inode is not None:
                self._restart()
                self._inode = None
            self.caught_up = True
            return b""
        end = data.rfind(b"\n") + 1
        # A line of megabytes isn't a row; its rest won't parse and is passed over.
        complete = data[: end if end or len(data) < LONGEST_LINE else len(data)]
        self.offset += len(complete)
        self._tail = (self._tail + complete[-KEPT_BYTES:])[-KEPT_BYTES:]
        return complete

    def _is_same_file(self, file: Any) -> bool:
        # When a run is started over, the new file often gets the inode of the removed one, and it may be
        # longer than the offset by the next poll. Only its content shows that it is another file.
        file.seek(self.offset - len(self._tail))
        return bool(file.read(len(self._tail)) == self._tail)

    def _restart(self) -> None:
        self.generation += 1
        self.offset = 0
        self._tail = b""
