"""ImageNet's weights of keras.applications: in Keras's cache, or fetched into it.

TensorFlow is imported only to read them.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.data.download import DownloadError, fetch
from labkit.data.sources import check_connection
from labkit.errors import InputError

__all__ = ["WEIGHTS", "WeightsFile", "weights_file"]

CONNECT_TIMEOUT = 8.0  # seconds
_ROOT = "https://storage.googleapis.com/tensorflow/keras-applications"


@dataclass(frozen=True)
class WeightsFile:
    """A published file: its address, and its MD5 where Keras names one."""

    url: str
    md5: str | None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


# Addresses and sums as in keras/src/applications (3.15.1), the networks without their heads.
WEIGHTS = {
    "MobileNetV2": WeightsFile(
        f"{_ROOT}/mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5", None
    ),
    "ResNet50V2": WeightsFile(
        f"{_ROOT}/resnet/resnet50v2_weights_tf_dim_ordering_tf_kernels_notop.h5",
        "fac2f116257151a9d068a22e544a4917",
    ),
    "DenseNet121": WeightsFile(
        f"{_ROOT}/densenet/densenet121_weights_tf_dim_ordering_tf_kernels_notop.h5",
        "30ee3e1110167f948a6b9946edeeb738",
    ),
}


def weights_file(
    wanted: WeightsFile, announce: Callable[[str], None] = print, timeout: float = CONNECT_TIMEOUT
) -> Path:
    """Return where a file of weights is, once it is there.

    Keras's own cache is used, ``$KERAS_HOME/models`` or ``~/.keras/models``.

    Raises InputError, saying which file belongs where, when it can't be had, or isn't the published one.
    """
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"
    path = folder / wanted.name
    if not path.is_file():
        _fetch(wanted, path, announce, timeout)
    if wanted.md5 is not None:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != wanted.md5:
            raise InputError(
                f"--start-from imagenet: {path} is not the published file (MD5 {found} instead of "
                f"{wanted.md5}); remove it, and it is fetched again"
            )
    return path


def _fetch(wanted: WeightsFile, path: Path, announce: Callable[[str], None], timeout: float) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        check_connection(wanted.url, timeout)
        path.parent.mkdir(parents=True, exist_ok=True)
        announce(f"downloading {wanted.url}")
        fetch(wanted.url, part, timeout, slowest=1024, chunk=1 << 16, announce=announce)
        os.replace(part, path)
    except (InputError, DownloadError, OSError) as error:
        raise InputError(
            f"--start-from imagenet: {wanted.url} can't be had ({error}); get it elsewhere and put it into "
            f"{path.parent}, or start from a run or a .keras file"
        ) from None
