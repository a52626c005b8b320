"""Pickles of plain arrays are read, all others are refused."""

import contextlib
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from labkit.data.cifar10.pickles import load_pickle
from labkit.errors import InputError


class _Runs:
    """Unpickling this would call a function of the operating system."""

    def __init__(self, call, *arguments):
        self._reduced = call, arguments

    def __reduce__(self):
        return self._reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol):
    value = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"labels": [1, 2], b"name": b"\x00\xff"}
    read = load_pickle("file", pickle.dumps(value, protocol))
    np.testing.assert_array_equal(read[b"data"], value[b"data"])
    assert read[b"data"].dtype == np.uint8
    assert read[b"labels"] == [1, 2] and read[b"name"] == b"\x00\xff"


def test_a_pickle_of_python_2_and_numpy_1_is_read():
    content = (
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\nI2\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        b"S'\\x01\\x02\\xfe\\xff'\ntbsS'labels'\n(lp2\nI3\naI9\nas."
    )
    read = load_pickle("file", content)
    np.testing.assert_array_equal(read[b"data"], np.array([[1, 2], [254, 255]], np.uint8))
    assert read[b"labels"] == [3, 9]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("call", [Path.touch, eval, getattr, np.load, np.frombuffer, __import__, bytearray])
def test_any_callable_is_refused_and_not_run(call, protocol, tmp_path):
    target = tmp_path / "made"
    content = pickle.dumps({b"data": _Runs(call, target)}, protocol)
    with pytest.raises(InputError, match="would run"):
        load_pickle("data_batch_1", content)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": np.array([object, None], dtype=object)}),
        b"c_codecs\nencode\n(S'00'\nS'hex'\ntR.",  # only latin1 is needed
    ],
)
def test_arrays_of_objects_and_other_codecs_are_refused(content):
    with pytest.raises(InputError, match="not allowed"):
        load_pickle("file", content)


@pytest.mark.parametrize("content", [b"", b"garbage", b"(dp0\nS'data'\n", pickle.dumps([1])])
def test_other_content_is_refused_and_the_file_named(content):
    with pytest.raises(InputError, match="^batches.meta "):
        load_pickle("batches.meta", content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # an index of the memo, for which the reader in C takes gigabytes
        b"\x80\x05}(K\x01\x96\x00\x00\x00\x00\x04\x00\x00\x00.",  # bytes of 16 GB
        b"\x80\x02}(K\x01cnumpy\nndarray\n(J\x00\x00\x00\x7ftR\x85Ru.",  # an array of any size
    ],
)
def test_what_a_pickle_declares_takes_no_memory(content):
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            load_pickle("data_batch_1", content)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_dtype_with_fields_outside_of_its_memory_is_refused():
    dtype = "cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR"
    state = "(I3\nS'|'\nN(S'a'\ntp9\n(dp8\ng9\ns(g7\nI900\ntp6\nsI4\nI1\nI0\ntb"
    for crafted in (state, "(I3\nS'|'\nNNNI8\nI-1\nI0\ntb", "(I3\nS'|'\nNNNI-1\nI-1\nI63\ntb"):
        with pytest.raises(InputError, match="is refused: not a pickle of plain arrays"):
            load_pickle("data_batch_1", f"(dp0\nS'data'\n{dtype}{crafted}s.".encode())
    plain = load_pickle("file", f"(dp0\nS'data'\n{dtype}(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbs.".encode())
    assert plain[b"data"] == np.uint8
