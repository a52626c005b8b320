"""Downloads from a server that misbehaves in every way."""

import hashlib
import http.server
import threading
from contextlib import contextmanager

import pytest

from labkit.data.cifar10 import sources
from labkit.errors import InputError

NAME = "cifar-10-python.tar.gz"
CIFAR10_ADDRESS = sources.default_url(sources.CIFAR10)  # before ``published`` puts another in its place
CONTENT = bytes(range(256)) * 4000  # 1 MB


class _Server(http.server.ThreadingHTTPServer):
    """Answers each request with the next behaviour in `plan`, and then always with the last one."""

    daemon_threads = True

    def __init__(self, plan):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.plan, self.ranges, self.done = list(plan), [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/{NAME}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        plan = self.server.plan
        self.server.ranges.append(self.headers.get("Range"))
        getattr(self, plan.pop(0) if len(plan) > 1 else plan[0])()

    def _head(self, status, length, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _offset(self):
        wanted = self.headers.get("Range")
        return int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0

    def whole(self):
        start = self._offset()
        self._head(206 if start else 200, len(CONTENT) - start)
        self.wfile.write(CONTENT[start:])

    def without_ranges(self):
        self._head(200, len(CONTENT))
        self.wfile.write(CONTENT)

    def labelled_as_compressed(self):
        self._head(200, len(CONTENT), Content_Encoding="gzip")
        self.wfile.write(CONTENT)

    def half(self):
        start = self._offset()
        self._head(206 if start else 200, len(CONTENT) - start)
        self.wfile.write(CONTENT[start : len(CONTENT) // 2])

    def other(self):
        self._head(200, 5)
        self.wfile.write(b"other")

    def missing(self):
        self.send_error(404)

    def broken(self):
        self.send_error(503)

    def silent(self):
        self.server.done.wait(30)

    def stalling(self):
        self._head(200, len(CONTENT))
        self.wfile.write(CONTENT[:1000])
        self.wfile.flush()
        self.server.done.wait(30)

    def dripping(self):
        self._head(200, len(CONTENT))
        for byte in CONTENT:
            if self.server.done.wait(0.01):
                return
            self.wfile.write(bytes([byte]))
            self.wfile.flush()

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


@contextmanager
def _serving(*plan):
    server = _Server(plan)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.done.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def published(monkeypatch):
    """Make CONTENT the published archive, and don't wait between attempts."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(
        sources.PUBLISHED, NAME, sources.Published("http://127.0.0.1:9/", sha256, len(CONTENT), "CIFAR-10")
    )
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _download(folder, server, **options):
    return sources.download(folder, url=server.url, **{"timeout": 10, **options})


HALF = f"bytes={len(CONTENT) // 2}-"


@pytest.mark.parametrize(
    ("cached", "plan", "ranges"),
    [
        ({}, ["whole"], [None]),
        ({NAME: b"damaged"}, ["whole"], [None]),
        ({f"{NAME}.part": b"something else"}, ["whole"], ["bytes=14-", None]),
        ({}, ["labelled_as_compressed"], [None]),
        ({}, ["half", "whole"], [None, HALF]),
        ({}, ["half", "without_ranges"], [None, HALF]),
        ({}, ["broken", "whole"], [None, None]),
    ],
)
def test_a_download_is_complete_whatever_was_there_and_the_server_does(tmp_path, cached, plan, ranges):
    for name, content in cached.items():
        (tmp_path / name).write_bytes(content)
    lines = []
    with _serving(*plan) as server:
        for _ in range(2):  # the second time it is there
            assert _download(tmp_path, server, announce=lines.append) == tmp_path / NAME
            assert (tmp_path / NAME).read_bytes() == CONTENT
            assert list(tmp_path.iterdir()) == [tmp_path / NAME]
        assert server.ranges == ranges
    assert any(line.startswith("downloading http://127.0.0.1") for line in lines)
    assert "downloading: 1.0 of 1.0 MB" in lines
    assert any("503" in line and "2 of 3" in line for line in lines) is ("broken" in plan)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("other", "not a published.*SHA-256 [0-9a-f]{64}.*--archive"), ("missing", "404.*--archive")],
)
def test_another_and_a_missing_file_are_refused_and_requested_only_once(tmp_path, behaviour, message):
    with _serving(behaviour) as server:
        with pytest.raises(InputError, match=message):
            _download(tmp_path / "downloads", server)
        assert len(server.ranges) == 1
    assert not (tmp_path / "downloads").exists()


def test_repeated_interruptions_are_an_error_and_the_next_call_resumes(tmp_path):
    with _serving("half") as server, pytest.raises(InputError, match="data ended after 512,000 bytes"):
        _download(tmp_path, server, attempts=1)
    with _serving("whole") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT
        assert server.ranges == [f"bytes={len(CONTENT) // 2}-"]


@pytest.mark.parametrize("behaviour", ["silent", "stalling", "dripping"])
def test_a_download_that_is_too_slow_fails(tmp_path, behaviour):
    with _serving(behaviour) as server, pytest.raises(InputError, match="--archive PATH"):
        _download(tmp_path, server, timeout=0.2, attempts=2)


def test_a_missing_network_is_reported_in_one_line(tmp_path):
    with _serving("whole") as server:
        url = server.url
    with pytest.raises(InputError, match="no connection.*--archive PATH") as caught:
        sources.download(tmp_path / "downloads", url=url, timeout=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "downloads").exists()


def test_connection_probe(monkeypatch):
    monkeypatch.setattr(sources, "getproxies", dict)
    with _serving("whole") as server:
        sources.check_connection(server.url, 5)
        url = server.url
    with pytest.raises(InputError, match="127.0.0.1 cannot be reached"):
        sources.check_connection(url, 5)
    release = threading.Event()

    def hang(*_, **__):
        release.wait(30)
        raise OSError("late")

    monkeypatch.setattr("socket.create_connection", hang)
    with pytest.raises(InputError, match="no answer within 0.05 s"):
        sources.check_connection(url, 0.05)
    release.set()


def test_the_published_archives_have_the_documented_addresses():
    assert CIFAR10_ADDRESS == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert all(len(p.sha256) == 64 for p in sources.PUBLISHED.values())
