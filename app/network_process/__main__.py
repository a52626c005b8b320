"""The process that holds a network: ``python -m app.network_process SOCKET RUN STEP IDLE_SECONDS THREADS``.

SOCKET is the number of an inherited socket, whose other end the asking process holds. The process ends when
that end is closed, and when no question has come for IDLE_SECONDS.
"""

import os
import socket
import sys

from app.network_process.serve import serve
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras

SEND_SECONDS = 30.0
NICENESS = 10  # so that a training on the same machine goes first


def main(arguments: list[str]) -> None:
    """Load the network and answer until the connection ends."""
    descriptor, run, step, idle_seconds, threads = arguments
    connection = socket.socket(fileno=int(descriptor))
    os.nice(NICENESS)
    try:
        import_tensorflow()
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(int(threads))
        tf.config.threading.set_inter_op_parallelism_threads(1)
        from app.network_process.answers import Answers

        answers = Answers(RunDirectory(run), int(step))
    except InputError as error:
        from app.ask.wire import send

        send(connection, {"error": str(error)}, seconds=SEND_SECONDS)
        return
    serve(connection, answers.answer, about=answers.about, idle_seconds=float(idle_seconds))


if __name__ == "__main__":
    leave_out_extras()
    main(sys.argv[1:])
