"""``labkit tensorboard``: what it refuses, what it tells, and a real server that answers and ends."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from labkit.commands import dashboard
from labkit.commands import main as cli
from labkit.run_directory import RunDirectory
from labkit.tensorboard import server
from tests.commands.in_process import refused
from tests.tensorboard.conftest import event_file, record


@pytest.fixture
def never(monkeypatch):
    """No server may start."""
    monkeypatch.setattr(server, "start_server", lambda *_, **__: pytest.fail("a server was started"))


def test_bad_input_is_one_line_before_anything_starts(folder, never):
    assert f"there are no runs in {folder}; train one with labkit train" in refused("tensorboard")
    record(RunDirectory(folder / "first"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, said in (
            ("frist", "no run at 'frist'"),
            ("first frist", "did you mean first?"),
            ("--port 70000", "--port is 70000; allowed: a whole number from 1 to 65535"),
            (f"--port {port}", f"--port is {port}, which can't be used"),
            *((f"--host={host}", f"--host is {host!r}, which is no address of this machine")
              for host in ("nowhere.invalid", "8.8.8.8", "http://127.0.0.1", "")),
        ):  # fmt: skip
            assert said in refused("tensorboard", *words.split())


@pytest.mark.parametrize(("arguments", "warned"), [([], False), (["--host", "0.0.0.0"], True)])
def test_other_machines_are_let_in_only_on_request_and_with_a_warning(
    folder, monkeypatch, capsys, arguments, warned
):
    class Begun(Exception):
        pass

    served = []

    def begin(folder, port, host):
        served.append(host)
        raise Begun

    monkeypatch.setattr(server, "start_server", begin)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    record(RunDirectory(folder / "first"))
    with pytest.raises(Begun):
        cli.main(["tensorboard", *arguments])
    assert served == ["0.0.0.0" if warned else "127.0.0.1"]
    assert ("whoever reaches this machine can read the runs" in capsys.readouterr().out) == warned


def test_ctrl_c_during_an_import_which_may_lose_it_ends_the_server_after_it(tmp_path, monkeypatch):
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.3)\n"
    (tmp_path / "slow_to_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, dashboard._exit)
    try:
        with pytest.raises(KeyboardInterrupt):
            importlib.import_module("slow_to_import")
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "slow_to_import" in sys.modules


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_address_answers_and_nothing_stays(folder, tmp_path, end):
    runs = [RunDirectory(tmp_path / place / "a,b:c") for place in ("runs", "other")]
    for run in runs:
        record(run)
    path = event_file(runs[1])
    path.write_bytes(path.read_bytes()[:-7])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "tensorboard", "a,b:c", str(runs[1].path)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As from a terminal: tests that were started in the background ignore Ctrl-C, and hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        note, said = process.stdout.readline(), process.stdout.readline()
        assert note.startswith(f"note: {path} is damaged from byte ")
        address = said.split()[1]
        with urllib.request.urlopen(f"{address}data/runs", timeout=60) as answer:
            assert set(json.loads(answer.read())) <= {"a,b:c in runs", "a,b:c in other"}
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        listens = [c for one in family for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in listens} <= {"127.0.0.1", "::1"}
        assert list(temporary.glob("labkit-tensorboard-*"))
        process.send_signal(end)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (0 if end == signal.SIGINT else 128 + signal.SIGTERM)
        assert errors == ""
        _, alive = psutil.wait_procs(family[1:], timeout=30)
        assert not alive
        assert not list(temporary.glob("labkit-tensorboard-*"))
    finally:
        process.kill()
        process.communicate()
