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

from labkit import errors
from labkit.commands import main as cli


def became(*arguments):
    """Run a command that ends by becoming another program."""
    with pytest.raises(SystemExit):
        cli.main(arguments)


@pytest.fixture
def started(monkeypatch):
    """The commands that a process would have become, with their environments."""
    seen = []

    def become(program, words, environment):
        seen.append((words, environment))
        sys.exit(0)

    monkeypatch.setattr(os, "execve", become)
    return seen


def test_the_dashboard_is_on_a_free_port_of_this_machine(started, tmp_path, capsys):
    became("dashboard", "--runs-dir", str(tmp_path))
    [(words, environment)] = started
    assert words[:5] == [sys.executable, "-P", "-m", "streamlit", "run"]
    assert words[5].endswith("app/main.py")
    assert {"--server.address=127.0.0.1", "--server.headless=false"} <= set(words)
    assert environment["LABKIT_RUNS"] == str(tmp_path)
    port = next(word for word in words if word.startswith("--server.port=")).partition("=")[2]
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out


def test_a_read_only_dashboard_is_told_so(started, tmp_path):
    became("dashboard", "--read-only")
    became("dashboard")
    assert [environment.get("LABKIT_READ_ONLY") for _, environment in started] == ["1", None]


def test_no_browser_is_opened_where_none_is_wanted(started):
    became("dashboard", "--no-browser")
    assert "--server.headless=true" in started[0][0]


def test_a_port_that_is_taken_is_refused(started, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert cli.main(["dashboard", "--port", port]) == 2
    assert f"--port is {port}, which can't be used" in capsys.readouterr().err
    assert cli.main(["dashboard", "--port", "70000"]) == 2
    assert not started


def test_without_streamlit_the_way_out_is_named(started, monkeypatch, capsys):
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["dashboard"]) == 2
    assert capsys.readouterr().err.endswith("pip install '.[app]' in a checkout of labkit\n")


def test_a_folder_that_is_not_there_is_refused(started, capsys):
    assert cli.main(["dashboard", "--runs", "/nowhere"]) == 2
    assert "--runs-dir /nowhere is not a directory" in capsys.readouterr().err
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
        process.wait(30)
        assert not [pid for pid in family if psutil.pid_exists(pid)]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
