"""The process that holds a network: ``python -m app.network_process PIPE IDLE_SECONDS THREADS``.

PIPE is the number of an inherited end of a pipe, whose other end the asking process holds. The process
imports TensorFlow; its first question, ``load``, names a run and the step of a checkpoint. It ends when the
other end is closed, and when no question has come for IDLE_SECONDS.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from numpy.typing import NDArray

from app.ask.process import Message, receive, send
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras

NICENESS = 10  # so that a training on the same machine goes first

Answer = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]


def main(arguments: list[str]) -> None:
    """Import TensorFlow, then answer until the connection ends."""
    descriptor, idle_seconds, threads = arguments
    connection: Connection[Any, Any] = Connection(int(descriptor))
    os.nice(NICENESS)
    with suppress(InputError):  # which the first question raises again
        _import(int(threads))
    held: list[Callable[[Message], Answer]] = []

    def answer(question: Message) -> Answer:
        if held:
            return held[0](question)
        import_tensorflow()
        from app.network_process.answers import Answers

        held.append(Answers(RunDirectory(question.content["run"]), question.content["step"]).answer)
        return {}, {}

    serve(connection, answer, idle_seconds=float(idle_seconds))


def _import(threads: int) -> None:
    import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import app.network_process.answers  # noqa: F401 - takes a second with what it imports


def serve(
    connection: "Connection[Any, Any]", answer: Callable[[Message], Answer], *, idle_seconds: float
) -> None:
    """Answer until the other side ends, sends garbage, or is silent for long.

    Args:
        connection: to the asking process.
        answer: returns content and arrays. An InputError that it raises is the answer, too, and so is any
            other error: one question that fails must not end the process.
        idle_seconds: of silence.
    """
    with suppress(OSError):
        while True:
            send(connection, *_answered(answer, receive(connection, idle_seconds)))


def _answered(answer: Callable[[Message], Answer], question: Message) -> Answer:
    try:
        return answer(question)
    except InputError as error:
        return {"error": str(error)}, {}
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")[:200]
        return {"failed": f"{type(error).__name__}: {reason}"}, {}


if __name__ == "__main__":
    leave_out_extras()
    main(sys.argv[1:])
