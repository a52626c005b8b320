"""One HTTP download into a file: resumable, with a progress bar, and with an end to its patience."""

import time
from collections.abc import Callable
from pathlib import Path

import requests
import urllib3
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

__all__ = ["TransferError", "fetch"]


class TransferError(Exception):
    """A download that did not end well; `may_pass` says whether trying again can help."""

    def __init__(self, message: str, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def fetch(
    url: str, path: Path, timeout: float, *, slowest: int, chunk: int, announce: Callable[[str], None]
) -> None:
    """Download `url` into `path`, going on where the file ends.

    Args:
        url: http or https.
        path: kept as far as it got when the transfer fails.
        timeout: seconds to wait for a connection, and for data.
        slowest: bytes per second; a transfer that stays below it for `timeout` seconds fails.
        chunk: bytes to read at most at once.
        announce: takes lines in place of a progress bar where there is no terminal.

    Raises:
        TransferError: no connection, no data in time, a bad status, or the data ended early.
        OSError: `path` cannot be written.
    """
    start = path.stat().st_size if path.is_file() else 0
    # "identity": some servers label a .tar.gz as compressed on the way, and clients then unpack it.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=(timeout, timeout)) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                path.unlink()
                raise TransferError("the server has nothing after what is here", may_pass=True)
            if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                answer = f"the server answers {response.status_code} {response.reason}"
                raise TransferError(answer, may_pass=response.status_code >= 500)
            if response.status_code == requests.codes.ok:
                start = 0
            _receive(response, path, start, timeout, slowest, chunk, announce)
    except requests.Timeout:
        raise TransferError(f"no answer within {timeout:g} s", may_pass=True) from None
    except requests.ConnectionError:
        raise TransferError("no connection", may_pass=True) from None
    except urllib3.exceptions.TimeoutError:
        raise TransferError(f"no data within {timeout:g} s", may_pass=True) from None
    except urllib3.exceptions.HTTPError:
        raise TransferError(f"the data ended after {path.stat().st_size:,} bytes", may_pass=True) from None
    except requests.RequestException as error:
        raise TransferError(str(error), may_pass=False) from None


def _receive(
    response: requests.Response,
    path: Path,
    start: int,
    timeout: float,
    slowest: int,
    chunk: int,
    announce: Callable[[str], None],
) -> None:
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdigit() else None
    received = start
    window_start, window_received = time.monotonic(), received
    with _Display(total, start, announce) as display, open(path, "ab" if start else "wb") as file:
        # read1 hands over what has arrived; read would wait for a whole chunk, however slowly it drips in.
        while data := response.raw.read1(chunk):
            file.write(data)
            received += len(data)
            display.show(received)
            elapsed = time.monotonic() - window_start
            if elapsed > timeout:
                if received - window_received < slowest * elapsed:
                    raise TransferError(
                        f"less than {slowest} bytes a second for {timeout:g} s", may_pass=True
                    )
                window_start, window_received = time.monotonic(), received
    if total is not None and received < total:
        raise TransferError(f"the data ended after {received:,} bytes", may_pass=True)


class _Display:
    """A progress bar on a terminal, a line every quarter elsewhere."""

    def __init__(self, total: int | None, start: int, announce: Callable[[str], None]) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("download", total=total, completed=start)
        self._total = total
        self._announce = announce
        self._quarter = 0 if total is None else 4 * start // max(total, 1)

    def __enter__(self) -> "_Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, received: int) -> None:
        """Show that `received` bytes are here."""
        if not self._bar.disable:
            self._bar.update(self._task, completed=received)
        elif self._total and 4 * received // self._total > self._quarter:
            self._quarter = 4 * received // self._total
            self._announce(f"{received / 1e6:.1f} of {self._total / 1e6:.1f} MB downloaded")
