"""Open and read the files of a run, which may be somebody else's run. Standard library only."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

__all__ = ["LONGEST_LINE", "open_own", "read_json"]

LONGEST_LINE = 2**23  # bytes; a row of metrics has hundreds
_MOST_JSON = 2**26  # bytes; a certificate has 72 for each row


def open_own(path: str | Path, mode: str = "rb", **settings: Any) -> IO[Any]:
    """Open a file of a run, as ``open`` does. ``settings``: those of ``open``.

    A link could lead to any file of the reader's, and to open a pipe would wait for ever.

    Raises OSError if it is a link or no regular file, beside the reasons of ``open``.
    """
    return open(path, mode, opener=_opener, **settings)


def _opener(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, which labkit doesn't follow in a run", path) from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def read_json(path: str | Path) -> Any:
    """Return the value in a file of a run.

    Raises OSError as ``open_own`` does, and ValueError or RecursionError if it isn't JSON or too long.
    """
    with open_own(path) as file:
        text = file.read(_MOST_JSON + 1)
    if len(text) > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON >> 20} MB")
    return json.loads(text)
