"""``labkit serve``: right answers for many clients at once, and a sentence for what is no picture."""

import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
import requests
from PIL import Image

import labkit
from labkit.analysis.predictions import load_predictions
from labkit.commands import main as cli
from labkit.data.images.pictures import MAX_BYTES
from labkit.run_directory import RunDirectory

CLIENTS, SECONDS = 200, 6
PATIENCE = 120

pytestmark = pytest.mark.slow


class Served:
    """A server of the run that every test may use: its process and its address."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def post(self, body: bytes, path: str = "predict", **options: object) -> requests.Response:
        return requests.post(self.address + path, data=body, timeout=PATIENCE, **options)


@pytest.fixture(scope="module")
def served(smoke: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "labkit", "serve", str(smoke), "--checkpoint", "20", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        yield Served(process, found[0])
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def pictures(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("pictures")
    made = []
    for place, pixels in enumerate(load_predictions(RunDirectory(smoke)).images[:50]):
        Image.fromarray(pixels).save(folder / f"{place}.png")
        made.append((folder / f"{place}.png").read_bytes())
    return made


@pytest.fixture(scope="module")
def expected(smoke: Path) -> tuple[list[str], np.ndarray]:
    predictions = load_predictions(RunDirectory(smoke))
    found = labkit.load_run(smoke).predict(predictions.images[:50], checkpoint=20)
    return [found.classes[number] for number in found.predicted], found.probabilities


@pytest.mark.long
def test_many_clients_get_right_answers_and_memory_stays(served, pictures, expected):
    names, probabilities = expected
    wrong: list[object] = []
    took: list[float] = []
    end = time.monotonic() + SECONDS

    def client(number: int) -> None:
        with requests.Session() as session:
            place = number
            while time.monotonic() < end:
                place = (place + 7) % len(pictures)
                started = time.monotonic()
                answer = session.post(served.address + "predict", data=pictures[place], timeout=PATIENCE)
                took.append(time.monotonic() - started)
                told = answer.json()
                right = told.get("class") == names[place]
                if not right or abs(told["probability"] - probabilities[place].max()) > 1e-5:
                    wrong.append((answer.status_code, told))

    served.post(pictures[0])
    process = psutil.Process(served.process.pid)
    before = process.memory_info().rss
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong, wrong[:3]
    assert len(took) > CLIENTS
    assert process.memory_info().rss - before < 400 * 2**20


@pytest.mark.long
def test_an_answer_has_as_many_classes_as_are_asked_for(served, pictures, expected):
    told = served.post(pictures[3], "predict?top=3").json()
    best = np.argsort(-expected[1][3], kind="stable")[:3]
    assert [one["probability"] for one in told["top"]] == pytest.approx(expected[1][3][best], abs=1e-5)
    assert told["step"] == 20 and told["run"] == "smoke"


def bomb() -> bytes:
    """A small PNG that says it has 40,000 x 40,000 pixels."""
    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    made = b"\x89PNG\r\n\x1a\n"
    for kind, content in parts:
        made += (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )
    return made


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "said"),
    [
        (b"no picture", "predict", {}, 400, "isn't a picture"),
        (b"", "predict", {}, 400, "isn't a picture"),
        (b"x" * (MAX_BYTES + 1), "predict", {}, 413, "more than 10 MB"),
        (bomb(), "predict", {}, 400, "pixels"),
        (b"", "predict?top=0", {}, 400, "top is '0'; allowed: 1 to 100"),
        (b"", "predict", {"Origin": "http://elsewhere.example"}, 403, "other addresses"),
        (b"", "predict", {"Host": "elsewhere.example"}, 400, "Invalid host"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(served, body, path, headers, status, said):
    answer = served.post(body, path, headers=headers)
    assert answer.status_code == status and said in answer.text and "\n" not in answer.text
    assert served.process.poll() is None


def begun(address: str, size: int) -> socket.socket:
    """Begin to send a picture of a size."""
    client = socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=PATIENCE)
    client.sendall(f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n".encode())
    return client


def test_a_gigabyte_is_refused_before_it_is_sent(served):
    with begun(served.address, 2**30) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_files_that_many_clients_send_wait_outside_of_memory(served, pictures):
    process, size = psutil.Process(served.process.pid), 9 * 2**20
    served.post(pictures[0])
    before = process.memory_info().rss
    clients = [begun(served.address, size) for _ in range(64)]
    for client in clients:
        client.setblocking(False)
    left = dict.fromkeys(clients, size - 1)  # the last byte never comes
    for _ in range(40):
        for client in clients:
            try:
                while left[client]:
                    left[client] -= client.send(b"x" * min(left[client], 2**20))
            except BlockingIOError:
                pass
        time.sleep(0.05)
    assert sum(sent == 0 for sent in left.values()) >= 16
    grown = process.memory_info().rss - before
    for client in clients:
        client.close()
    assert grown < 300 * 2**20
    assert served.post(pictures[0]).status_code == 200


def test_a_client_that_goes_away_leaves_the_server(served, pictures):
    place = urlsplit(served.address + "predict")
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(pictures[0])}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as client:
            client.sendall(head.encode() + pictures[0])  # and it leaves without the answer
    assert served.post(pictures[0]).status_code == 200


def test_there_is_a_page_and_a_word_when_it_is_ready(served):
    page = requests.get(served.address, timeout=PATIENCE)
    assert (
        "Drop a picture here" in page.text and "default-src 'self'" in page.headers["Content-Security-Policy"]
    )
    assert requests.get(served.address + "ready", timeout=PATIENCE).text == "ready"
    assert requests.get(served.address + "predict", timeout=PATIENCE).status_code == 405


@pytest.mark.parametrize(
    ("flags", "said"), [(["--port", "70000"], "--port is 70000"), (["--checkpoint", "7"], "7")]
)
def test_what_cant_be_served_is_refused(smoke, capsys, flags, said):
    assert cli.main(["serve", str(smoke), "--port", "0", *flags]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_a_port_that_is_taken_is_refused(smoke, served, capsys):
    port = served.address.rstrip("/").rpartition(":")[2]
    assert cli.main(["serve", str(smoke), "--port", port]) == 2
    assert "give another, or 0" in capsys.readouterr().err
