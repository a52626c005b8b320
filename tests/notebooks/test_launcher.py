"""The tiles of JupyterLab's launcher: what answers behind Jupyter's token, and nothing without it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from labkit.notebook import launcher
from tests.listening import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds
TOKEN = "of-this-test"
GROUP = "jupyter_serverproxy_servers"


def installed_in(folder: Path) -> Path:
    """Make the entry points of pyproject.toml known, whenever the checkout was installed."""
    points = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    place = folder / "labkit_tiles-0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: labkit-tiles\nVersion: 0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    (place / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
    return folder


@contextmanager
def jupyter(folder: Path, base: str) -> Iterator[str]:
    """Start a Jupyter server on loopback; it and all that it started end with the block."""
    port = free_port()
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--allow-root", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.base_url={base}"]
    path = os.pathsep.join([str(installed_in(folder / "site")), str(CHECKOUT)])
    own = {name: str(folder / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    log = folder / "jupyter.log"
    with open(log, "wb") as output:
        environment = {**os.environ, "PYTHONPATH": path, "LABKIT_HOME": str(folder), **own}
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_until_open(port, server, log)
            yield f"http://127.0.0.1:{port}{base}"
        finally:
            family = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            finally:
                _, left = psutil.wait_procs(family, 10)
                for process in (*left, server):
                    process.kill()
    assert not left, "what the tiles started ends with Jupyter's server"


def wait_until_open(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.1)


class Unfollowed(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as the answer: to Jupyter's page for the token."""

    def redirect_request(self, *given):
        return None


def fetch(address: str, token: str | None = TOKEN) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"token {token}"}
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.build_opener(Unfollowed).open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Location", "")


def answers(address: str) -> bool:
    try:
        return fetch(address, None)[0] == 200
    except OSError:  # it speaks no HTTP
        return False


def first_answer(address: str) -> bytes:
    """Open Streamlit's websocket through Jupyter's server, ask for the page; return how the answer begins."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as link:
        request = [
            f"GET {place.path} HTTP/1.1", f"Host: {place.netloc}", f"Origin: http://{place.netloc}",
            f"Authorization: token {TOKEN}", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: streamlit", "", "",
        ]  # fmt: skip
        link.sendall("\r\n".join(request).encode())
        answer = link.makefile("rb")
        assert b" 101 " in answer.readline()
        while answer.readline().strip():
            pass
        link.sendall(b"\x82\x82" + bytes(4) + b"\x5a\x00")  # a binary frame: BackMsg{rerun_script: {}}
        return answer.read(1)


def listening_beside(port: int) -> set[int]:
    """Return the ports at which what this test has started listens, without ``port``."""
    family = psutil.Process().children(recursive=True)
    found = {c.laddr.port for one in family for c in one.net_connections("inet") if c.status == "LISTEN"}
    return found - {port}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.alone
def test_the_tiles_answer_behind_the_token_and_end_with_the_server(tmp_path):
    with jupyter(tmp_path, "/user/ada/") as address:
        status, text = fetch(f"{address}server-proxy/servers-info")
        entries = {one["name"]: one["launcher_entry"] for one in json.loads(text)["server_processes"]}
        assert [entries[name]["title"] for name in ("labkit-dashboard", "labkit-tensorboard")] == [
            "labkit dashboard",
            "TensorBoard",
        ]
        for name in entries:
            assert fetch(f"{address}server-proxy/icon/{name}")[1].startswith("<svg")
        board = entries["labkit-tensorboard"]["path_info"]
        assert len(board) > len("labkit-tensorboard/") + 16, "a path that other users can't guess"
        for name in ("labkit-dashboard/", "labkit-dashboard/_stcore/health", "labkit-tensorboard/", board):
            for token in (None, "guessed"):
                status, place = fetch(address + name, token)
                assert status in (401, 403) or (status == 302 and "/login?" in place), name
        status, text = fetch(f"{address}labkit-dashboard/")
        assert status == 200 and "streamlit" in text.lower()
        assert fetch(f"{address}labkit-dashboard/_stcore/health") == (200, "ok")
        stream = first_answer(f"{address}labkit-dashboard/_stcore/stream")
        assert stream == b"\x82", "a binary frame, not one that closes the connection"
        assert listening_beside(urlsplit(address).port) == set(), "a Unix socket, no port"
        status, text = fetch(address + board)
        assert status == 200 and "TensorBoard" in text
        assert fetch(f"{address}{board}data/runs") == (200, "[]")
        for port in listening_beside(urlsplit(address).port):  # of TensorBoard, and of what reads its files
            assert not answers(f"http://127.0.0.1:{port}/user/ada/labkit-tensorboard/data/runs")


def test_a_path_with_braces_stays_what_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher.home, "shipped", lambda folder: tmp_path / "{x}" / folder)
    words = [word.format(unix_socket="/s", base_url="/") for word in launcher.dashboard()["command"]]
    assert words[-3:] == [str(tmp_path / "{x}" / "app" / "on_socket.py"), "/s", "/labkit-dashboard"]


@pytest.mark.parametrize("installed", [True, False])
def test_there_is_a_tile_where_streamlit_is_installed(installed, monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda name: find_spec(name) if installed else None)
    assert launcher.dashboard()["launcher_entry"]["enabled"] is installed
