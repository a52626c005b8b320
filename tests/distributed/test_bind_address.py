"""Real sockets: the addresses that TensorFlow's servers listen on, and the replacement for bind."""

import ctypes
import errno
import ipaddress
import json
import platform
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from labkit.distributed import bind_address
from labkit.distributed.bind_address import listen_on
from labkit.errors import InputError
from tests.listening import listening_addresses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets labkit choose the address")

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK, OTHER_LOOPBACK = "127.0.0.1", "127.0.0.2"  # Linux answers on all of 127.0.0.0/8
TIME_LIMIT = 120  # seconds; importing TensorFlow and three servers take about 7

# Prints what the test looks at, one JSON per line, and then lives until its input is closed.
SERVERS = """
import json, socket, sys
from labkit.startup.quiet_import import import_tensorflow
from labkit.distributed.bind_address import listen_on
from tests.listening import listening_addresses

import_tensorflow()
import tensorflow as tf

def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports

def server(hosts, task):
    cluster = tf.train.ClusterSpec({"worker": hosts})
    return tf.distribute.Server(cluster, job_name="worker", task_index=task, protocol="grpc")

alone, *ports = free_ports(4)
plain = server([f"127.0.0.1:{alone}"], 0)
before = listening_addresses()

listen_on("127.0.0.1")
hosts = [f"127.0.0.1:{port}" for port in ports[:2]]
workers = [server(hosts, task) for task in range(2)]
with tf.Graph().as_default(), tf.compat.v1.Session(workers[0].target) as session:
    with tf.device("/job:worker/task:1"):
        there = tf.constant([[3.0]])
    with tf.device("/job:worker/task:0"):
        product = tf.matmul(there, there)
    product = session.run(product).item()
try:
    server(hosts, 0)
    taken = False
except tf.errors.UnknownError:
    taken = True

listen_on("127.0.0.2")
moved = server([f"127.0.0.2:{ports[2]}"], 0)
found = {"alone": alone, "ports": ports, "before": before, "product": product, "taken": taken}
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def servers():
    """A process with a server of TensorFlow's own choice, two on 127.0.0.1 and one on 127.0.0.2."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVERS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(TIME_LIMIT, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        assert line, f"the servers' process ended with {process.wait()}"
        yield json.loads(line) | {"pid": process.pid}
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def answers(host: str, port: int) -> bool:
    """Whether a connection is taken; anything but yes and no fails."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def addresses_beyond_loopback() -> list[str]:
    interfaces = psutil.net_if_addrs().values()
    found = [entry.address for entries in interfaces for entry in entries if entry.family == socket.AF_INET]
    return [ip for ip in found if not ipaddress.ip_address(ip).is_loopback]


@pytest.mark.long
@pytest.mark.slow
def test_servers_listen_on_the_chosen_address_alone_and_work_together(servers):
    first, second, moved = servers["ports"]
    wanted = {(LOOPBACK, first), (LOOPBACK, second), (OTHER_LOOPBACK, moved)}
    found = {(ip, port) for ip, port in listening_addresses(servers["pid"]) if port != servers["alone"]}
    assert found == wanted
    assert answers(LOOPBACK, first) and answers(LOOPBACK, second) and answers(OTHER_LOOPBACK, moved)
    for elsewhere in (OTHER_LOOPBACK, *addresses_beyond_loopback()):
        assert not answers(elsewhere, first) and not answers(elsewhere, second)
    assert servers["product"] == 9.0
    assert servers["taken"], "a port that is taken is an error as before"
    # If this fails, TensorFlow has learned to listen where the cluster says, and the module can go.
    [[everywhere, port]] = servers["before"]
    assert everywhere in ("::", "0.0.0.0") and port == servers["alone"] and answers(OTHER_LOOPBACK, port)


NOT_OURS, NO_NAME = "not an address of this machine", "neither an IP address nor a known host name"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("203.0.113.7", NOT_OURS),  # a documentation address (RFC 5737) that nobody has
        ("224.0.0.1", NOT_OURS),  # multicast: bind takes it, no client ever reaches it
        ("255.255.255.255", NOT_OURS),
        ("nosuch.invalid", NO_NAME),  # RFC 6761: never resolves
        ("127.0.0.1:8000", NO_NAME),
        ("", NO_NAME),
        ("a" * 70, NO_NAME),  # longer than a label may be
    ],
)
def test_an_address_that_is_not_this_machines_is_refused(address, reason):
    with pytest.raises(InputError, match=f"^--bind {address}: {reason}.*0.0.0.0 for all of them$"):
        listen_on(address)


@pytest.mark.parametrize("system", ["Darwin arm64", "Linux riscv64", "no call of bind"])
def test_a_system_where_tensorflow_cannot_be_held_is_refused(monkeypatch, system):
    if system == "no call of bind":
        monkeypatch.setattr(bind_address, "import_tensorflow", lambda: None)
        monkeypatch.setattr(bind_address, "loaded_libraries", lambda package_file: [])
    else:
        monkeypatch.setattr(platform, "system", lambda: system.split()[0])
        monkeypatch.setattr(platform, "machine", lambda: system.split()[1])
    with pytest.raises(InputError, match=f"every address.*{system}.*to accept that, give --bind 0.0.0.0"):
        listen_on(LOOPBACK)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_every_address_leaves_bind_alone_on_any_system(monkeypatch, address):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(bind_address, "_wanted", ipaddress.ip_address(LOOPBACK))
    listen_on(address)
    assert bind_address._wanted is None


# ---- The replacement for bind, called through its C pointer as gRPC calls it


_bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, use_errno=True)(
    ctypes.cast(bind_address._bind_callback, ctypes.c_void_p).value
)


def sockaddr(family: int, host: str, port: int) -> bytes:
    """``struct sockaddr_in`` and ``sockaddr_in6`` as <netinet/in.h> lays them out."""
    start = family.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
    packed = socket.inet_pton(family, host)
    return start + packed + bytes(8) if family == socket.AF_INET else start + bytes(4) + packed + bytes(4)


@pytest.fixture
def want(monkeypatch):
    """Set the wanted address for one test."""
    return lambda address: monkeypatch.setattr(
        bind_address, "_wanted", address and ipaddress.ip_address(address)
    )


def bound(family: int, host: str, port: int = 0, v6only: int = 0) -> tuple[str, int]:
    """Bind a socket through the callback and return where it really is."""
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        raw = sockaddr(family, host, port)
        if _bind(server.fileno(), raw, len(raw)):
            raise OSError(ctypes.get_errno(), "bind")
        server.listen()
        ip, port = server.getsockname()[:2]
        assert (ip.removeprefix("::ffff:"), port) in listening_addresses()
        return ip, port


has_ipv6 = pytest.mark.skipif(
    not any(entry.address == "::1" for entries in psutil.net_if_addrs().values() for entry in entries),
    reason="this machine has no IPv6 loopback address",
)


@pytest.mark.parametrize(
    ("wanted", "family", "host", "expected"),
    [
        (LOOPBACK, socket.AF_INET, "0.0.0.0", LOOPBACK),
        (OTHER_LOOPBACK, socket.AF_INET, "0.0.0.0", OTHER_LOOPBACK),
        (LOOPBACK, socket.AF_INET, OTHER_LOOPBACK, OTHER_LOOPBACK),  # not the wildcard: stays
        (None, socket.AF_INET, "0.0.0.0", "0.0.0.0"),
        pytest.param(LOOPBACK, socket.AF_INET6, "::", "::ffff:127.0.0.1", marks=has_ipv6),
        pytest.param(LOOPBACK, socket.AF_INET6, "::ffff:0.0.0.0", "::ffff:127.0.0.1", marks=has_ipv6),
        pytest.param(LOOPBACK, socket.AF_INET6, "::1", "::1", marks=has_ipv6),
        pytest.param("::1", socket.AF_INET6, "::", "::1", marks=has_ipv6),
        pytest.param(None, socket.AF_INET6, "::", "::", marks=has_ipv6),
    ],
)
def test_only_the_wildcard_is_replaced(want, wanted, family, host, expected):
    want(wanted)
    assert bound(family, host)[0] == expected


@pytest.mark.parametrize(
    ("wanted", "family", "v6only", "number"),
    [
        (LOOPBACK, socket.AF_INET, 0, errno.EADDRINUSE),
        ("::1", socket.AF_INET, 0, errno.EADDRNOTAVAIL),  # a socket that can't have it gets none
        pytest.param(LOOPBACK, socket.AF_INET6, 1, errno.EINVAL, marks=has_ipv6),
    ],
)
def test_a_failed_bind_says_why_and_the_port_stays(want, wanted, family, v6only, number):
    want(wanted)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as caught:
            bound(family, "0.0.0.0" if family == socket.AF_INET else "::", port, v6only)
    assert caught.value.errno == number
    want(LOOPBACK)
    assert bound(socket.AF_INET, "0.0.0.0", port=port) == (LOOPBACK, port)


def test_an_exception_in_between_binds_nothing(want, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    want(LOOPBACK)
    monkeypatch.setattr(bind_address, "_redirected", interrupted)
    raw = sockaddr(socket.AF_INET, "0.0.0.0", 0)
    with socket.socket() as server:
        assert _bind(server.fileno(), raw, len(raw)) == -1
        assert ctypes.get_errno() == errno.EADDRNOTAVAIL
        assert server.getsockname() == ("0.0.0.0", 0)  # what Linux says of a socket without an address


@pytest.mark.parametrize("raw", [b"", b"\x01", (socket.AF_UNIX).to_bytes(2, sys.byteorder) + b"/tmp/x\0"])
def test_what_is_not_an_internet_address_stays(raw):
    assert bind_address._redirected(raw, ipaddress.ip_address(LOOPBACK)) == raw
