"""Read pickles of plain arrays. All others are refused, because a pickle can call any function it names."""

import io
import pickle
from typing import Any

import numpy as np

from labkit.errors import InputError

__all__ = ["load_pickle"]


def _numeric_dtype(code: Any, *flags: Any) -> np.dtype:
    dtype = np.dtype(code, *flags)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"arrays of {dtype} are not allowed")
    return dtype


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r} are not allowed")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_FROM_BUFFER = np.empty(0).__reduce_ex__(5)[0]
# Everything that pickles of plain NumPy arrays name, with NumPy 1 and 2 and pickle protocols 0 to 5.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _numeric_dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that creates only arrays, containers, numbers and strings."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it would run {module + '.' + name!r}") from None


def load_pickle(where: str, content: bytes) -> dict[Any, Any]:
    """Read a pickled dict of arrays, lists, numbers and strings; strings of Python 2 are returned as bytes.

    Args:
        where: the file's name for error messages.
        content: the pickle, of any protocol.

    Raises:
        InputError: the pickle names anything else, is damaged, or is not a dict.
    """
    try:
        value = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{where} is refused: not a pickle of plain arrays ({reason})") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} contains a {type(value).__name__} instead of a dict")
    return value
