"""Start and end the process that holds a network, and exchange messages with it.

A message is a JSON object and arrays, sent over a pipe of ``multiprocessing`` in NumPy's own format. Nothing
that is received is executed or unpickled.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError
from labkit.startup.child import import_path, python_command
from labkit.startup.process import Child, signal_name

IDLE_SECONDS = 600.0
LOAD_SECONDS = 180.0  # importing TensorFlow takes 6 s on an idle machine, and far longer on a busy one
ANSWER_SECONDS = 120.0
END_SECONDS = 10.0
MAX_BYTES = 256 * 2**20  # of a message
# With which a child imports this dashboard and this labkit.
IMPORTS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), import_path()])}


class Message(NamedTuple):
    """``content``: a JSON object. ``arrays``: by their names."""

    content: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def send(
    connection: "Connection[Any, Any]",
    content: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Send a message. Raises OSError if the other side is gone."""
    data, text = io.BytesIO(), json.dumps(dict(content)).encode()
    np.savez(data, content=np.frombuffer(text, np.uint8), **(arrays or {}))  # type: ignore[arg-type]
    connection.send_bytes(data.getbuffer())


def receive(connection: "Connection[Any, Any]", seconds: float) -> Message:
    """Receive a message. Raises TimeoutError after ``seconds`` without one.

    Raises another OSError where the other side has ended, or sends anything else.
    """
    if not connection.poll(seconds):
        raise TimeoutError("the other side takes too long")
    try:
        with np.load(io.BytesIO(connection.recv_bytes(MAX_BYTES)), allow_pickle=False) as data:
            arrays = dict(data)
        return Message(json.loads(arrays.pop("content").tobytes()), arrays)
    except EOFError:
        raise ConnectionError("the other side has ended") from None
    except (AttributeError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ConnectionError(f"what it sends is no message: {error}") from None


class NoAnswer(RuntimeError):
    """The process gave no answer. The message is one sentence for people; asking again may help."""


class Worker:
    """A process that imports TensorFlow and waits for questions. It ends with this one, even a killed one.

    Args:
        idle_seconds: of silence after which it ends.
        threads: that an operation may use.

    Raises NoAnswer if the system can't start it.
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS, threads: int = 2) -> None:
        self.connection, theirs = Pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = Child(
                python_command("-m", "app.network_process", theirs.fileno(), idle_seconds, threads),
                IMPORTS | {"CUDA_VISIBLE_DEVICES": "-1"},  # a GPU's memory is the training's
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            self.connection.close()
            self._stderr.close()
            raise NoAnswer(f"The process for the network can't be started: {error.strerror}.") from None
        finally:
            theirs.close()

    @property
    def pid(self) -> int | None:
        """The id of the process's parent, which ends as the process does; None once it has ended."""
        return self._process.pid if self._process.poll() is None else None

    def end_in_words(self) -> str:
        """Return how a process has ended by itself, and what to do."""
        code = self._process.wait(END_SECONDS)
        if code is not None and code < 0:
            memory = "; perhaps the memory is full" if -code == signal.SIGKILL else ""
            return f"was killed by {signal_name(-code)}{memory}. Try again to start a new one."
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 4096))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"has ended{f' ({lines[-1][:200]})' if lines else ''}. Try again to start a new one."

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.close()
        self._stderr.close()


class NetworkProcess:
    """The process that holds the network of one checkpoint. It is taken with the first question.

    Several threads may ask; one question is answered after the other. After a silence the process ends, and
    the next question takes another one.

    Args:
        run: the run directory.
        step: of the checkpoint.
        worker: returns a process.
        load_seconds, answer_seconds: that loading and an answer may take.
    """

    def __init__(
        self,
        run: Path,
        step: int,
        *,
        worker: Callable[[], Worker] = Worker,
        load_seconds: float = LOAD_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.run, self.step = run, step
        self.loading_since: float | None = None  # by time.monotonic; None: it isn't being loaded
        self._new_worker = worker
        self._load_seconds, self._answer_seconds = load_seconds, answer_seconds
        self._turn = _Turn()
        self._worker: Worker | None = None
        self._closed = False
        self._refused: InputError | None = None  # why the network can't be loaded

    @property
    def pid(self) -> int | None:
        """The id of the process's parent, which ends as the process does; None if none is alive."""
        worker = self._worker
        return worker.pid if worker is not None else None

    def ask(
        self,
        content: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        patient: bool = False,
    ) -> Message:
        """Send a question and return the answer; take a process if there is none.

        Args:
            content, arrays: the question.
            patient: lets all other questions go first.

        Raises InputError where the question or the run is at fault, and NoAnswer where the process is: it
        ended, took too long, or was given up for another network.
        """
        with self._turn.taken(patient=patient):
            if self._closed:
                raise NoAnswer("This network was given up, because others were asked since. Try again.")
            if self._refused is not None:
                raise self._refused
            if self.pid is None:  # not started yet, crashed, or ended after a long silence
                self._end()
                self._load()
            return self._exchange(content, arrays, self._answer_seconds, "The answer of the network")

    def load_again(self) -> None:
        """Try to load the network at the next question, even if that couldn't be done before."""
        self._refused = None

    def close(self) -> None:
        """End the process, once it has given the answer that it is working on."""
        self._closed = True
        with self._turn.taken(seconds=END_SECONDS):
            self._end()

    def _load(self) -> None:
        self.loading_since = time.monotonic()
        try:
            self._worker = self._new_worker()
            wanted = {"question": "load", "run": str(self.run), "step": self.step}
            self._exchange(wanted, None, self._load_seconds, "Loading the network")
        except (InputError, NoAnswer) as error:
            self._refused = error if isinstance(error, InputError) else None
            self._end()
            raise
        finally:
            self.loading_since = None

    def _exchange(
        self, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None, seconds: float, what: str
    ) -> Message:
        assert self._worker is not None
        try:
            send(self._worker.connection, content, arrays)
            message = receive(self._worker.connection, seconds)
        except TimeoutError:
            self._end()
            raise NoAnswer(
                f"{what} took longer than {seconds:.0f} seconds and was ended. Try again."
            ) from None
        except OSError:
            how = self._worker.end_in_words()
            self._end()
            raise NoAnswer(f"The process that holds the network {how}") from None
        if "error" in message.content:
            raise InputError(str(message.content["error"]))
        if "failed" in message.content:
            raise NoAnswer(f"The network can't answer this ({message.content['failed']}).")
        return message

    def _end(self) -> None:
        """End the process if there is one, and forget it."""
        self.loading_since = None
        if self._worker is not None:
            self._worker.close()
        self._worker = None


class _Turn:
    """A lock that patient threads get only if no other one waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._waiting = 0  # threads that aren't patient

    @contextlib.contextmanager
    def taken(self, *, patient: bool = False, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock for a block; after ``seconds`` of waiting, go on without it."""
        with self._changed:
            self._waiting += not patient
            free = self._changed.wait_for(lambda: not (self._busy or (patient and self._waiting)), seconds)
            self._waiting -= not patient
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                if free:
                    self._busy = False
                self._changed.notify_all()
