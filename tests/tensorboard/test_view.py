"""TensorBoard in a notebook: the server, its lifetime, and what the notebook shows."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import psutil
import pytest

import labkit
from labkit.run_directory import RunDirectory
from labkit.tensorboard import view
from tests.tensorboard.conftest import record

pytestmark = pytest.mark.slow

NOTEBOOK = """
import json, sys, time
import labkit
board = labkit.load_run(sys.argv[1]).tensorboard(sys.argv[2])
print(json.dumps({"address": board.address, "pid": board._process.pid}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def runs(tmp_path):
    runs = [RunDirectory(tmp_path / folder / "run") for folder in ("a", "b")]
    for run in runs:
        record(run)
    return runs


def shown(address):
    with urllib.request.urlopen(f"{address}data/runs", timeout=60) as answer:
        return set(json.loads(answer.read()))


@pytest.mark.long
def test_the_server_ends_with_the_process_that_started_it_even_if_that_is_killed(runs):
    command = [sys.executable, "-c", NOTEBOOK, *(str(run.path) for run in runs)]
    notebook = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that were started in the background ignore Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        started = json.loads(notebook.stdout.readline())
        assert shown(started["address"]) == {"run in a", "run in b"}
        server = psutil.Process(started["pid"])
        family = [server, *server.children(recursive=True)]
        listens = [c.laddr.ip for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert listens == ["127.0.0.1"]
        os.killpg(notebook.pid, signal.SIGINT)  # as Jupyter interrupts a cell
        notebook.wait(30)
    finally:
        notebook.kill()
        notebook.wait()
        notebook.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


@pytest.mark.long
def test_the_same_runs_have_one_server_and_it_starts_again_after_its_end(runs, monkeypatch):
    first, second = (labkit.load_run(run.path) for run in runs)
    board = first.tensorboard(second)
    assert second.tensorboard(str(first.path)) is board
    assert board.running
    mime = board._repr_mimebundle_()
    assert f'<iframe src="{board.address}"' in mime["text/html"]
    assert " hidden></iframe><script>" in mime["text/html"], "a saved notebook would show an empty frame"
    assert f'<a href="{board.address}"' in mime["text/html"]
    for text in mime.values():
        assert f"labkit tensorboard {first.path} {second.path}" in text
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/me/proxy/%PORT%")
    own = urlsplit(board.address)
    assert len(own.path) > 20, "a path that nobody guesses"
    assert f'<iframe src="/user/me/proxy/{own.port}{own.path}"' in board._repr_mimebundle_()["text/html"]
    board.close()
    assert "ended" in repr(board)
    again = first.tensorboard(second)
    assert again is not board
    assert again.running
    again.close()


def test_a_server_that_does_not_start_and_a_run_that_is_not_there_say_why(runs, monkeypatch):
    with pytest.raises(labkit.InputError, match="no run at 'nowhere'"):
        labkit.load_run(runs[0].path).tensorboard("nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="TensorBoard did not start"):
        view.show(runs[:1])
