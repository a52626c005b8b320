"""The process that holds a network: ``python -m app.network_process PIPE RUN STEP IDLE_SECONDS THREADS``.

PIPE is the number of an inherited end of a pipe, whose other end the asking process holds. The process ends
when that end is closed, and when no question has come for IDLE_SECONDS.
"""

import os
import sys
from collections.abc import Callable, Mapping
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
    """Load the network and answer until the connection ends."""
    descriptor, run, step, idle_seconds, threads = arguments
    connection: Connection[Any, Any] = Connection(int(descriptor))
    os.nice(NICENESS)
    try:
        import_tensorflow()
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(int(threads))
        tf.config.threading.set_inter_op_parallelism_threads(1)
        from app.network_process.answers import Answers

        answers = Answers(RunDirectory(run), int(step))
    except InputError as error:
        send(connection, {"error": str(error)})
        return
    serve(connection, answers.answer, about=answers.about, idle_seconds=float(idle_seconds))


def serve(
    connection: "Connection[Any, Any]",
    answer: Callable[[Message], Answer],
    *,
    about: Mapping[str, Any],
    idle_seconds: float,
) -> None:
    """Send ``about``, then answer until the other side ends, sends garbage, or is silent for long.

    Args:
        connection: to the asking process.
        answer: returns content and arrays. An InputError that it raises is the answer, too, and so is any
            other error: one question that fails must not end the process.
        about: the first message.
        idle_seconds: of silence.
    """
    try:
        send(connection, about)
        while True:
            send(connection, *_answered(answer, receive(connection, idle_seconds)))
    except OSError:
        return


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
