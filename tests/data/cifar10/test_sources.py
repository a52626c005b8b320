"""Downloads from a server that misbehaves in every way."""

import hashlib
import http.server
import threading
from contextlib import contextmanager

import pytest

from labkit.data.cifar10 import sources
from labkit.errors import InputError

NAME = "cifar-10-python.tar.gz"
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
        sources.PUBLISHED, NAME, sources.Published("http://127.0.0.1:9/", sha256, len(CONTENT))
    )
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _download(folder, server, **options):
    return sources.download(folder, url=server.url, **{"timeout": 10, **options})


def test_a_download_is_verified_and_kept(tmp_path):
    with _serving("whole") as server:
        path = _download(tmp_path / "downloads", server)
        assert path == tmp_path / "downloads" / NAME and path.read_bytes() == CONTENT
        assert list(path.parent.iterdir()) == [path]
        assert _download(tmp_path / "downloads", server) == path
        assert len(server.ranges) == 1


def test_a_damaged_file_in_the_cache_is_downloaded_again(tmp_path):
    (tmp_path / NAME).write_bytes(b"damaged")
    with _serving("whole") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT


def test_the_file_is_not_decompressed_whatever_encoding_the_server_declares(tmp_path):
    with _serving("labelled_as_compressed") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_the_file_removed(tmp_path):
    message = "not a published.*SHA-256 [0-9a-f]{64}.*--archive"
    with _serving("other") as server, pytest.raises(InputError, match=message):
        _download(tmp_path / "downloads", server)
    assert not (tmp_path / "downloads").exists()


def test_an_interrupted_download_is_resumed(tmp_path):
    with _serving("half", "whole") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT
        assert server.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_download_starts_over_if_the_server_has_no_ranges(tmp_path):
    with _serving("half", "without_ranges") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT


def test_repeated_interruptions_are_an_error_and_the_next_call_resumes(tmp_path):
    with _serving("half") as server, pytest.raises(InputError, match="data ended after 512,000 bytes"):
        _download(tmp_path, server, attempts=1)
    with _serving("whole") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT
        assert server.ranges == [f"bytes={len(CONTENT) // 2}-"]


def test_a_partial_file_of_another_download_is_discarded(tmp_path):
    (tmp_path / f"{NAME}.part").write_bytes(b"something else")
    with _serving("whole") as server:
        assert _download(tmp_path, server).read_bytes() == CONTENT
        assert server.ranges == ["bytes=14-", None]


@pytest.mark.parametrize("behaviour", ["silent", "stalling", "dripping"])
def test_a_download_that_is_too_slow_fails(tmp_path, behaviour):
    with _serving(behaviour) as server, pytest.raises(InputError, match="--archive PATH"):
        _download(tmp_path, server, timeout=0.2, attempts=2)


def test_a_missing_file_is_requested_only_once(tmp_path):
    with _serving("missing") as server:
        with pytest.raises(InputError, match="404"):
            _download(tmp_path, server)
        assert len(server.ranges) == 1


def test_a_server_error_is_retried(tmp_path):
    lines = []
    with _serving("broken", "whole") as server:
        assert _download(tmp_path, server, announce=lines.append).read_bytes() == CONTENT
    assert any("503" in line and "2 of 3" in line for line in lines)


def test_a_missing_network_is_reported_in_one_line(tmp_path):
    with _serving("whole") as server:
        url = server.url
    with pytest.raises(InputError, match="no connection.*--archive PATH") as caught:
        sources.download(tmp_path / "downloads", url=url, timeout=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "downloads").exists()


def test_progress_is_printed_in_lines_without_a_terminal(tmp_path):
    lines = []
    with _serving("whole") as server:
        _download(tmp_path, server, announce=lines.append)
    assert lines[0].startswith("downloading http://127.0.0.1")
    assert lines[-1] == "downloading: 1.0 of 1.0 MB"


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with _serving("whole") as server, pytest.raises(InputError, match="--data-dir"):
        _download(tmp_path / "file" / "downloads", server)


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
    assert sources.DEFAULT_URL == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert all(len(p.sha256) == 64 for p in sources.PUBLISHED.values())
