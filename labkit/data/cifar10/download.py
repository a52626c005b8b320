"""Download one file over HTTP: resumable, with a progress bar and a limit on how slow the server may be."""

import time
from collections.abc import Callable
from pathlib import Path

import requests
import urllib3

from labkit.data.pool import Display

_CHUNK = 1 << 16
_SLOWEST = 1024  # bytes per second, averaged over one timeout


class DownloadError(Exception):
    """A failed download; `retryable` says whether another attempt can succeed."""

    def __init__(self, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


def fetch(url: str, path: Path, timeout: float, announce: Callable[[str], None]) -> None:
    """Download `url` into `path`, resuming at the end of what `path` already contains.

    Args:
        url: http or https.
        path: the output file; a failed download leaves what was received in it.
        timeout: seconds to wait for a connection, and for data; a download that stays too slow fails, too.
        announce: called with progress lines when there is no terminal for a progress bar.

    Raises:
        DownloadError: no connection, no data in time, an HTTP error status, or the data ended early.
        OSError: `path` cannot be written.
    """
    start = path.stat().st_size if path.is_file() else 0
    # "identity": some servers declare a .tar.gz as compressed content, and the client would unpack it.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=(timeout, timeout)) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                path.unlink()
                raise DownloadError("the server has no data after the downloaded part", retryable=True)
            if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                answer = f"the server answered {response.status_code} {response.reason}"
                raise DownloadError(answer, retryable=response.status_code >= 500)
            if response.status_code == requests.codes.ok:
                start = 0
            _receive(response, path, start, timeout, announce)
    except requests.Timeout:
        raise DownloadError(f"no answer within {timeout:g} s", retryable=True) from None
    except requests.ConnectionError:
        raise DownloadError("no connection", retryable=True) from None
    except urllib3.exceptions.TimeoutError:
        raise DownloadError(f"no data within {timeout:g} s", retryable=True) from None
    except urllib3.exceptions.HTTPError:
        raise DownloadError(f"the data ended after {path.stat().st_size:,} bytes", retryable=True) from None
    except requests.RequestException as error:
        raise DownloadError(str(error), retryable=False) from None


def _receive(
    response: requests.Response, path: Path, start: int, timeout: float, announce: Callable[[str], None]
) -> None:
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdigit() else None
    received = start
    window_start, window_received = time.monotonic(), received
    shown = Display("downloading", total, announce, done=start, in_bytes=True)
    with shown, open(path, "ab" if start else "wb") as file:
        # read1 returns what has arrived; read would wait for a whole chunk, however slowly it arrives.
        while data := response.raw.read1(_CHUNK):
            file.write(data)
            received += len(data)
            shown.advance(len(data))
            elapsed = time.monotonic() - window_start
            if elapsed > timeout:
                if received - window_received < _SLOWEST * elapsed:
                    raise DownloadError(
                        f"less than {_SLOWEST} bytes per second for {timeout:g} s", retryable=True
                    )
                window_start, window_received = time.monotonic(), received
    if total is not None and received < total:
        raise DownloadError(f"the data ended after {received:,} bytes", retryable=True)
