"""Read pickles of plain arrays. All others are refused, because a pickle can call any function it names."""

import io
import pickle
import struct
from typing import Any, ClassVar

import numpy as np

from labkit.errors import InputError, short


def _numeric_dtype(code: Any, *flags: Any) -> np.dtype:
    dtype = np.dtype(code, *flags)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"arrays of {dtype} are not allowed")
    return dtype


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r} are not allowed")
    return text.encode("latin1")


class _NdArray:
    """Stands for ``numpy.ndarray``, which a pickle only names: called, it would allocate any size."""


def _reconstruct(kind: type, shape: tuple[int, ...], code: Any) -> np.ndarray:
    """Return the empty array that a pickle then fills."""
    if kind is not _NdArray or shape != (0,):
        raise pickle.UnpicklingError("arrays are made empty and then filled")
    return np.empty(0)


_FROM_BUFFER = np.empty(0).__reduce_ex__(5)[0]
# Everything that pickles of plain NumPy arrays name, with NumPy 1 and 2 and pickle protocols 0 to 5.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _numeric_dtype,
    ("_codecs", "encode"): _latin1,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle._Unpickler):
    """An unpickler that creates only arrays, containers, numbers and strings.

    It is the one in Python because the one in C allocates as many entries as the largest index of a memo.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it would run {module + '.' + name!r}") from None

    def load_build(self) -> None:
        """Set the state of an object; of a dtype only its byte order, not fields or sizes."""
        value, state = self.stack[-2:]  # type: ignore[attr-defined]
        if isinstance(value, np.dtype):
            version, order, *more = state
            order = order.decode() if isinstance(order, bytes) else order
            if version not in (1, 2, 3, 4) or order not in "<>|=" or set(more) - {None, -1, 0}:
                raise pickle.UnpicklingError(f"a dtype of the state {short(state)} is not allowed")
        elif not isinstance(value, np.ndarray):
            raise pickle.UnpicklingError(f"a {type(value).__name__} with a state is not allowed")
        super().load_build()  # type: ignore[misc]

    def load_bytearray8(self) -> None:
        """Read bytes; those of Python allocate the length that the pickle declares before they read."""
        (length,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        content = self.read(length)  # type: ignore[attr-defined]
        if len(content) < length:
            raise EOFError("it ends early")
        self.append(bytearray(content))  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


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
