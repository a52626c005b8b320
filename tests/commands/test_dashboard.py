"""``labkit dashboard``: what it starts, on loopback, and that nothing stays."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from tests.commands.in_process import answer, refused


@pytest.fixture
def started(monkeypatch):
    """The commands that a process would have become, with their environments."""
    seen = []

    def become(program, words, environment):
        seen.append((words, environment))
        sys.exit(0)

    monkeypatch.setattr(os, "execve", become)
    return seen


def test_the_dashboard_is_on_a_free_port_of_this_machine_and_told_what_was_asked(started, tmp_path):
    said = answer("dashboard", "--runs-dir", tmp_path).out
    answer("dashboard", "--read-only", "--no-browser")
    (words, environment), (other_words, other) = started
    assert [*words[:3], words[4]] == [sys.executable, "-P", "-c", "run"]
    assert words[5].endswith("app/main.py")
    assert {"--server.address=127.0.0.1", "--server.headless=false"} <= set(words)
    assert environment["LABKIT_RUNS"] == str(tmp_path)
    port = next(word for word in words if word.startswith("--server.port=")).partition("=")[2]
    assert f"http://127.0.0.1:{port}" in said
    assert (environment.get("LABKIT_READ_ONLY"), other["LABKIT_READ_ONLY"]) == (None, "1")
    assert "--server.headless=true" in other_words


def test_a_port_that_is_taken_and_a_folder_that_is_not_there_are_refused(started):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"--port is {port}, which can't be used" in refused("dashboard", "--port", port)
    refused("dashboard", "--port", "70000")
    assert "--runs-dir /nowhere is not a directory" in refused("dashboard", "--runs", "/nowhere")
    assert not started


@pytest.mark.slow
def test_a_real_dashboard_answers_and_ends_with_ctrl_c():
    command = [sys.executable, "-m", "labkit", "dashboard", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = process.stdout.readline().split()[1]
        give_up = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5) as answer:
                    assert answer.read() == b"ok"
                break
            except OSError:
                assert time.monotonic() < give_up
                assert process.poll() is None
                time.sleep(0.2)
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, "Ctrl-C is no failure"
        assert "Abort" not in process.stdout.read()
        assert not [pid for pid in family if psutil.pid_exists(pid)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
