"""Worker processes that send arrays to each other, for lessons 10 to 14 and their exercises.

``Workers`` starts them and runs a function in each; ``Worker`` is what the function gets there. Each is a
process of its own with one thread for its arithmetic, so workers share nothing but what they send. They
connect to each other by TCP, over loopback or, with ``link``, over links of a chosen rate.
"""

import atexit
import functools
import math
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, NamedTuple

import cloudpickle

from course.lessons.verdict import Wrong, may_be_the_students
from labkit.cluster.hosts import Hosts
from labkit.errors import InputError
from labkit.startup.process import Child, described_exit, python_command

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0  # until all workers are connected; on a busy machine importing TensorFlow takes long
SECONDS = 10.0  # of one function, unless ``run`` is told otherwise
ANSWER_SECONDS = 2.0  # for a worker to say what it waits for
# How NumPy's and TensorFlow's arithmetic are told their number of threads.
THREADS = [f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL")]
THREADS += ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]
ENVIRONMENT = {**dict.fromkeys(THREADS, "1"), "CUDA_VISIBLE_DEVICES": "-1"}  # each would take the whole GPU


class WorkersFailed(RuntimeError):
    """A function failed in a worker, or didn't end in time. The message says which worker, and why."""


class Gone(ConnectionError):
    """Raised in a worker by ``receive``: the sender has ended, and all that it sent has been received."""


class Span(NamedTuple):
    """What a worker did from ``begin`` to ``end``, seconds of a clock that all workers share."""

    worker: int
    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Round:
    """What came of running a function in each worker. Lists have one item a worker.

    Args:
        results: what the function returned; None of a worker that was killed, where that was allowed.
        seconds: that each worker took, from the moment at which all were ready.
        bytes_sent, messages_sent: of arrays, and how many of them.
        spans: what the workers noted with ``Worker.span``, times counted from the moment all were ready.
    """

    results: list[Any]
    seconds: list[float]
    bytes_sent: list[int]
    messages_sent: list[int]
    spans: list[Span]


class _Answer(NamedTuple):
    """What a worker answers: how its function ended, a sentence about it, its pickled result and counts."""

    kind: str  # "result", "error", "gone" (another worker ended) or "ended" (this one did)
    text: str = ""
    result: bytes = cloudpickle.dumps(None)
    seconds: float = math.nan
    num_bytes: int = 0
    messages: int = 0
    spans: Sequence[Span] = ()
    begin: float = math.inf


# ---- in a worker's process -----------------------------------------------------------------------------


class _Peer:
    """A connection to another worker: one thread writes what is in ``outbox``, one reads into ``inbox``.

    ``outbox``: pickled pairs of a round and an array. ``inbox``: such pairs, and () if the other has ended.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        with socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small messages go at once
        self.outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        for loop in (self._write, self._read):
            threading.Thread(target=loop, daemon=True).start()

    def _write(self) -> None:
        with suppress(OSError):  # the other worker has ended; whoever waits for it is told
            while True:
                self._connection.send_bytes(self.outbox.get())

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                self.inbox.put(self._connection.recv())
        self.inbox.put(())


@dataclass
class Worker:
    """A worker, as the function sees it that ``Workers.run`` runs there.

    Args:
        rank: its number, from 0.
        size: the number of workers.
    """

    rank: int
    size: int
    _peers: dict[int, _Peer] = field(default_factory=dict, repr=False)
    _waits_for: int | None = field(default=None, repr=False)
    _round: int = field(default=0, repr=False)  # which call of ``Workers.run`` this is
    _sent: list[int] = field(default_factory=list, repr=False)
    _spans: list[Span] = field(default_factory=list, repr=False)

    def send(self, to: int, array: Any) -> None:
        """Send an array to the worker ``to``. Returns at once, while a thread sends a copy of it.

        Raises ValueError if there is no such worker.
        """
        peer = self._peer(to)
        message = cloudpickle.dumps((self._round, array))
        self._sent.append(getattr(array, "nbytes", len(message)))
        peer.outbox.put(message)

    def receive(self, source: int) -> Any:
        """Return the next array from the worker ``source``, in the order sent; waits until it is there.

        Raises ValueError if there is no such worker, and ``Gone`` if it ended.
        """
        peer, self._waits_for = self._peer(source), source
        try:
            while message := peer.inbox.get():
                of_round, array = message
                if of_round == self._round:  # an earlier function may have left messages unread
                    return array
        finally:
            self._waits_for = None
        peer.inbox.put(())  # for the next call
        raise Gone(f"worker {source} has ended")

    def barrier(self) -> None:
        """Wait until each worker is here. Its messages aren't counted."""
        empty, others = cloudpickle.dumps((self._round, None)), [rank for rank in range(self.size) if rank]
        if self.rank:
            self._peer(0).outbox.put(empty)
            self.receive(0)
            return
        for rank in others:
            self.receive(rank)
        for rank in others:
            self._peer(rank).outbox.put(empty)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note when the block began and ended, for ``Round.spans``."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._spans.append(Span(self.rank, name, begin, time.monotonic()))

    def _peer(self, rank: int) -> _Peer:
        if rank not in self._peers:
            others = ", ".join(map(str, sorted(self._peers)))
            raise ValueError(f"worker {self.rank} has no peer {rank}; its peers are {others}")
        return self._peers[rank]


def serve(descriptor: int, rank: int, size: int, address: str, prepare: str) -> None:
    """Connect to the other workers and run what arrives at ``descriptor``, until its other end is closed.

    The first message there is the key that workers show each other: all users can read a command line.
    """
    if prepare:
        from labkit.startup.quiet_import import import_tensorflow

        import_tensorflow()
    control, worker = Connection(descriptor), Worker(rank, size)
    key = control.recv_bytes()
    with Listener((address, 0), backlog=size, authkey=key) as listener:
        control.send(listener.address)
        for other, place in enumerate(control.recv()):
            if other < rank:
                connection = Client(place, authkey=key)
                connection.send(rank)
                worker._peers[other] = _Peer(connection)
        for _ in range(size - rank - 1):
            connection = listener.accept()
            other = connection.recv()
            worker._peers[other] = _Peer(connection)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(control, tasks, worker), daemon=True).start()
    while True:
        control.send(_done(worker, tasks.get()))


def _follow(control: Connection, tasks: "queue.SimpleQueue[bytes]", worker: Worker) -> None:
    """Take functions and questions from the process that started this one; end this one with it."""
    try:
        while True:
            message = control.recv_bytes()
            if message:
                tasks.put(message)
            else:
                control.send(("waits", worker._waits_for))
    except (EOFError, OSError):
        os._exit(0)


def _done(worker: Worker, message: bytes) -> _Answer:
    """Run a function."""
    worker._sent, worker._spans, worker._round = [], [], worker._round + 1
    try:
        function, arguments = cloudpickle.loads(message)
        worker.barrier()
        begin = time.monotonic()
        result = function(worker, *arguments)
        seconds = time.monotonic() - begin
        pickled, sent = cloudpickle.dumps(result), worker._sent
        return _Answer("result", "", pickled, seconds, sum(sent), len(sent), worker._spans, begin)
    except Gone as gone:
        return _Answer("gone", str(gone))
    except (Exception, SystemExit) as error:
        lines = traceback.extract_tb(error.__traceback__)
        line = next((line for line in reversed(lines) if may_be_the_students(line.filename)), lines[-1])
        text = " ".join(str(error).split())[:200]
        return _Answer("error", f"raised {type(error).__name__} in line {line.lineno} of {line.name}: {text}")


# ---- in the process that starts them -------------------------------------------------------------------


class Workers(AbstractContextManager["Workers"]):
    """Worker processes. They start with the first ``run``, and end with this process or the ``with`` block.

    Args:
        size: how many.
        link: rate of each worker's link in both directions, such as ``100mbit``, in network namespaces of
            their own; None: loopback. ``labkit.cluster.hosts.why_no_hosts`` says where that can't be.
        tensorflow: whether each imports TensorFlow before it is ready, which takes seconds.
    """

    def __init__(self, size: int, *, link: str | None = None, tensorflow: bool = False) -> None:
        self.size, self.link, self._tensorflow = size, link, tensorflow
        self._stack = ExitStack()
        self._children: list[Child] = []
        self._controls: list[Connection] = []
        self._starting = threading.RLock()
        atexit.register(self.close)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. The next ``run`` starts them anew."""
        self._children, self._controls = [], []
        self._stack.close()

    def start(self) -> None:
        """Start the workers, unless they run; another thread may do so meanwhile.

        Raises InputError where ``link`` can't be made.
        """
        with self._starting:
            if self._children:
                return
            try:
                self._start()
            except BaseException:
                self.close()
                raise

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        seconds: float = SECONDS,
        may_lose: bool = False,
    ) -> Round:
        """Run ``function(worker, *arguments)`` in each worker at the same time. Returns a ``Round``.

        Args:
            function: takes a ``Worker``; it may be defined in a notebook.
            arguments: the same for each worker.
            each: further arguments, one tuple for each worker, behind the others.
            seconds: after which the workers are ended and ``WorkersFailed`` says what they wait for.
            may_lose: return None of workers that end, in place of raising. The workers that wait for one
                of them get ``Gone``; a function that doesn't catch it returns None as well.

        Raises WorkersFailed with one sentence. The workers are ended then; the next ``run`` starts them anew.
        """
        self.start()
        for rank, control in enumerate(self._controls):
            own = each[rank] if each is not None else ()
            control.send_bytes(cloudpickle.dumps((function, (*arguments, *own))))
        try:
            answers = self._answers(seconds, may_lose)
        except BaseException:  # Ctrl-C as well: what runs there mustn't answer the next call
            self.close()
            raise
        if any(answer.kind != "result" for answer in answers):
            self.close()
        ready = min(answer.begin for answer in answers)  # a busy machine lets them begin one after the other
        spans = [span for answer in answers for span in answer.spans]
        return Round(
            results=[cloudpickle.loads(answer.result) for answer in answers],
            seconds=[answer.seconds for answer in answers],
            bytes_sent=[answer.num_bytes for answer in answers],
            messages_sent=[answer.messages for answer in answers],
            spans=[Span(rank, name, begin - ready, end - ready) for rank, name, begin, end in spans],
        )

    def kill(self, rank: int) -> None:
        """End a worker by SIGKILL, from another thread than that of ``run``."""
        self._children[rank].kill()

    def _start(self) -> None:
        names = [f"worker:{rank}" for rank in range(self.size)]
        hosts = self._stack.enter_context(Hosts(names, self.link)) if self.link is not None else None
        key = os.urandom(16)
        for rank, name in enumerate(names):
            ours, theirs = Pipe()
            address = hosts.addresses[name] if hosts else LOOPBACK
            with theirs:
                call = (theirs.fileno(), rank, self.size, address, "tensorflow" * self._tensorflow)
                command = python_command("-c", f"from course.lessons.workers import serve; serve(*{call!r})")
                options: dict[str, Any] = {"namespaces": hosts.namespaces(name) if hosts else ()}
                options |= {"stdout": None, "stderr": None, "pass_fds": (theirs.fileno(),)}
                child = Child(command, ENVIRONMENT, **options)
            self._children.append(self._stack.enter_context(child))
            self._controls.append(self._stack.enter_context(ours))
            ours.send_bytes(key)
        give_up = time.monotonic() + START_SECONDS
        for rank, control in enumerate(self._controls):
            if not control.poll(max(0.0, give_up - time.monotonic())):
                raise WorkersFailed(f"worker {rank} didn't start in {START_SECONDS:.0f} s")
        try:
            places = [control.recv() for control in self._controls]
            for control in self._controls:
                control.send(places)
        except (EOFError, OSError):
            raise WorkersFailed("a worker ended at its start; what it printed says why") from None

    def _answers(self, seconds: float, may_lose: bool) -> list[_Answer]:
        """Return what each worker answers, in the order of ranks."""
        answers: dict[int, _Answer] = {}
        give_up = time.monotonic() + seconds
        while len(answers) < self.size:
            missing = [rank for rank in range(self.size) if rank not in answers]
            ready = wait([self._controls[rank] for rank in missing], max(0.0, give_up - time.monotonic()))
            if not ready:
                raise WorkersFailed(self._stuck(missing, seconds))
            for rank in [rank for rank in missing if self._controls[rank] in ready]:
                try:
                    answers[rank] = self._controls[rank].recv()
                except (EOFError, OSError):
                    code = self._children[rank].wait(ANSWER_SECONDS) or 0
                    answers[rank] = _Answer("ended", described_exit(code))
                kind, text, *_ = answers[rank]
                if kind == "error" or (kind == "ended" and not may_lose):
                    raise WorkersFailed(f"worker {rank} {text if kind == 'error' else f'ended: {text}'}")
        for rank, (kind, text, *_) in sorted(answers.items()):
            if kind == "gone" and not may_lose:
                raise WorkersFailed(f"worker {rank} failed: {text}")
        return [answers[rank] for rank in range(self.size)]

    def _stuck(self, ranks: Sequence[int], seconds: float) -> str:
        """Return a sentence that says what the workers ``ranks`` wait for."""
        said = []
        for rank in ranks:
            control, source = self._controls[rank], None
            with suppress(EOFError, OSError):
                control.send_bytes(b"")
                if control.poll(ANSWER_SECONDS):
                    source = control.recv()[1]
            waits = "still computes" if source is None else f"still waits for a message from worker {source}"
            said.append(f"worker {rank} {waits}")
        return f"after {seconds:g} s, {', '.join(said)}"


@functools.cache
def workers_of(size: int, *, tensorflow: bool = False) -> Workers:
    """Return workers that are started once and kept, for exercises and short measurements over loopback."""
    return Workers(size, tensorflow=tensorflow)


def run_answer(
    size: int, function: Callable[..., Any], *arguments: Any, each: Sequence[tuple[Any, ...]] | None = None
) -> Round:
    """Run an answer of an exercise in ``size`` workers; arguments as of ``Workers.run``.

    Raises Wrong with what the workers failed of.
    """
    try:
        return workers_of(size).run(function, *arguments, each=each)
    except WorkersFailed as failed:
        raise Wrong(f"with {size} worker{'s' * (size > 1)}: {failed}") from None


if sys.platform == "win32":
    raise InputError("the worker processes of lessons 10 to 14 need Linux or macOS")
