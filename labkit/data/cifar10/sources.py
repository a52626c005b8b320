"""Where the published data sets are, how to download them, and what a manifest records of them."""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from labkit.data.cifar10.archives import CIFAR10, CIFAR100, CIFAR100_COARSE
from labkit.data.cifar10.archives import Form as CifarForm
from labkit.data.manifest import file_sha256
from labkit.data.published import FASHION_MNIST, MNIST, SVHN, GreyForm, SvhnForm
from labkit.errors import InputError, reason_of
from labkit.plurals import without_secrets

DEFAULT_TIMEOUT = 30.0
DEFAULT_ATTEMPTS = 3


@dataclass(frozen=True)
class Published:
    """A published archive: its address, SHA-256 and size in bytes, and what it holds."""

    url: str
    sha256: str
    bytes: int
    title: str


def _cifar(name: str, sha256: str, size: int) -> Published:
    url = f"https://www.cs.toronto.edu/~kriz/cifar-{name}.tar.gz"
    return Published(url, sha256, size, f"CIFAR-{name.partition('-')[0]}")


def _fashion(name: str, sha256: str, size: int) -> Published:
    url = f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}-ubyte.gz"
    return Published(url, sha256, size, "Fashion-MNIST")


def _svhn(split: str, sha256: str, size: int) -> Published:
    url = f"http://ufldl.stanford.edu/housenumbers/{split}_32x32.mat"
    return Published(url, sha256, size, "SVHN")


# The page https://www.cs.toronto.edu/~kriz/cifar.html gives only MD5 sums (c58f30108f718f92721af3b95e74349a
# and c32a1d4ab5d03f1284b67883e8d87530). The SHA-256 sums are those that other projects pin for the same
# files: the first from Keras (keras.datasets.cifar10), the second from torchvision for Ruby and GoMLX. Those
# of CIFAR-100 (eb9058c3a382ffc7106e4002c42a8d85, 03b5dce01913d631647c71ecec9e9cb8) are from the same three.
_ARCHIVES = (
    _cifar("10-python", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce", 170_498_071),
    _cifar("10-binary", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171),
    _cifar("100-python", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7", 169_001_437),
    _cifar("100-binary", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", 168_513_733),
    # As Keras has it (keras.datasets.mnist), with its sum.
    Published(
        url="https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        sha256="731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
        bytes=11_490_434,
        title="MNIST",
    ),
    # The authors publish MD5 sums of these files; the SHA-256 sums are those that Flux.jl and GluonTS pin.
    _fashion(
        "train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880
    ),
    _fashion("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
    _fashion(
        "t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102
    ),
    _fashion("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    # The authors publish no sums; these are the ones of TensorFlow Datasets and torchvision.
    _svhn("train", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794),
    _svhn("test", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
)
PUBLISHED = {published.url.rpartition("/")[2]: published for published in _ARCHIVES}  # by name
Form = CifarForm | GreyForm | SvhnForm
FORMS: dict[str, Form] = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cifar100_coarse": CIFAR100_COARSE,
    "mnist": MNIST,
    "fashion_mnist": FASHION_MNIST,
    "svhn": SVHN,
}


def default_url(form: Form) -> str:
    """Return the address of what is downloaded: of a file, or of the folder of several."""
    first = PUBLISHED[form.downloads[0]].url
    return first if len(form.downloads) == 1 else first.rpartition("/")[0]


def matches_published(sha256: str, form: Form = CIFAR10) -> bool:
    """Return whether `sha256` is the checksum of one of the published archives of a data set."""
    return any(sha256 == one.sha256 for one in PUBLISHED.values() if one.title == form.title)


def describe(path: Path, kind: str, location: str, form: Form = CIFAR10) -> dict[str, Any]:
    """Return what a manifest records about its source.

    ``matches_published`` is None for a folder, because no checksum of a folder is published.
    """
    [location] = without_secrets([location])
    sha256 = form.sha256(path)
    matches = None if path.is_dir() else matches_published(sha256, form)
    return {"kind": kind, "location": location, "sha256": sha256, "matches_published": matches}


def download(
    folder: Path,
    *,
    form: Form = CIFAR10,
    url: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    attempts: int = DEFAULT_ATTEMPTS,
    announce: Callable[[str], None] = lambda line: None,
) -> Path:
    """Download a published archive into `folder` if it is not there yet, and return its path.

    Of a data set of several files, that is a folder in it, and ``url`` is that of their folder. A file gets
    its final name only when it is complete and its checksum matches. This call or the next one resumes an
    interrupted download.

    Args:
        folder: the cache; created if missing.
        form: that of the data set.
        url: a mirror; the file it serves must be one of the published archives.
        timeout: seconds to wait for a connection or for more data.
        attempts: how often to try.
        announce: called with lines about the progress.

    Raises:
        InputError: `url` is not an HTTP address, the server can't be reached, does not answer in time or does
            not have the file, the checksum is wrong, or `folder` is not writable.
    """
    source = default_url(form) if url is None else url
    check_url(source)
    name, several = PurePosixPath(urlsplit(source).path).name, len(form.downloads) > 1
    if several:
        folder = folder / form.title
    names = form.downloads if several or name not in PUBLISHED else (name,)
    target = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            target = folder / name
            if target.is_file():
                if matches_published(file_sha256(target), form):
                    continue
                announce(f"{target} is not the published archive; downloading it again")
            try:
                from_there = f"{source.rstrip('/')}/{name}" if several else source
                _download(from_there, target, form, timeout, attempts, announce)
            finally:
                with suppress(OSError):  # fails, as intended, if the folder is not empty
                    folder.rmdir()
        return folder if several else target
    except OSError as error:  # errors of requests are handled in labkit.data.cifar10.download
        raise InputError(
            f"download into {folder} failed: {reason_of(error)}; choose another --data-dir"
        ) from None


def _download(
    source: str, target: Path, form: Form, timeout: float, attempts: int, announce: Callable[[str], None]
) -> Path:
    from labkit.data.cifar10.download import DownloadError, fetch

    partial = target.with_name(f"{target.name}.part")
    way_out = "try again, or get the archive elsewhere and give --archive PATH"
    for attempt in range(1, attempts + 1):
        resumed = partial.is_file() and partial.stat().st_size > 0
        announce(f"{'resuming' if resumed else 'downloading'} {source}")
        try:
            fetch(source, partial, timeout, announce)
        except DownloadError as error:
            if not error.retryable or attempt == attempts:
                raise InputError(f"{source} cannot be downloaded: {error}; {way_out}") from None
            announce(f"{error}; trying again ({attempt + 1} of {attempts})")
            time.sleep(min(2 ** (attempt - 2), 5))
            continue
        sha256 = file_sha256(partial)
        if matches_published(sha256, form):
            os.replace(partial, target)
            return target
        partial.unlink()
        if not resumed or attempt == attempts:
            raise InputError(
                f"{source} is not a published {form.title} archive (SHA-256 {sha256}); {way_out}"
            )
        announce("the resumed download has a wrong checksum; starting over")
    raise AssertionError("the last attempt returns or raises")


def check_url(url: str) -> None:
    """Raise InputError unless `url` is an http or https address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, or a port that is not a number
        usable = False
    if not usable:
        raise InputError(f"--url is {url!r}, not a download address; give http://... or https://...")


def check_connection(url: str, timeout: float) -> None:
    """Find out quickly whether `url`'s server can be reached; does nothing if a proxy is configured.

    A name server that does not answer can block a request for half a minute, whatever its timeout. The probe
    therefore runs in a thread that is abandoned after `timeout` seconds.

    Raises:
        InputError: no connection within `timeout` seconds.
    """
    if getproxies():
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    outcome: queue.Queue[str | None] = queue.Queue()

    def probe() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=timeout).close()
            outcome.put(None)
        except OSError as error:
            outcome.put(reason_of(error))

    threading.Thread(target=probe, daemon=True).start()
    try:
        problem = outcome.get(timeout=timeout)
    except queue.Empty:
        problem = f"no answer within {timeout:g} s"
    if problem:
        raise InputError(f"{parts.hostname} cannot be reached: {problem}")
