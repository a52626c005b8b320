"""The lock of a data set's folder, and the check of its free space."""

import threading

import pytest

from labkit.data.folder import check_space, locked
from labkit.errors import InputError


def test_a_second_process_waits_and_says_so(tmp_path):
    order, waiting = [], threading.Event()

    def second():
        with locked(tmp_path / "set", lambda line: (order.append(line), waiting.set())):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "set", order.append):
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    assert order == [f"waiting for another process that is preparing {tmp_path / 'set'}", "first", "second"]


def test_a_waiting_process_recreates_a_removed_folder(tmp_path):
    waiting, locked_again = threading.Event(), []

    def second():
        with locked(tmp_path / "new" / "set", lambda line: waiting.set()):
            locked_again.append((tmp_path / "new" / "set" / ".lock").exists())

    thread = threading.Thread(target=second)
    with pytest.raises(RuntimeError), locked(tmp_path / "new" / "set", lambda line: None):
        thread.start()
        assert waiting.wait(30)
        raise RuntimeError("fails before it writes anything")
    thread.join(30)
    assert locked_again == [True]


def test_a_failed_call_removes_only_the_folders_it_created(tmp_path):
    for kept in ("file", None):
        directory = tmp_path / str(kept) / "set"
        with pytest.raises(RuntimeError), locked(directory, lambda line: None):
            if kept:
                (directory / kept).write_text("")
            raise RuntimeError
        assert directory.exists() is bool(kept)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError), locked(tmp_path / "empty", lambda line: None):
        raise RuntimeError
    assert (tmp_path / "empty").exists()


def test_too_little_free_space_is_refused(tmp_path):
    check_space(tmp_path, 1)
    with pytest.raises(InputError, match="MB free"):
        check_space(tmp_path, 10**18)
