"""Answer one question after the other over a connection. Doesn't know what the questions are about."""

import socket
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from app.ask.wire import Message, WireError, receive, send
from labkit.errors import InputError

__all__ = ["serve"]

MESSAGE_SECONDS = 30.0  # for one message, from its first to its last byte

Answer = tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]


def serve(
    connection: socket.socket,
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
        send(connection, about, seconds=MESSAGE_SECONDS)
        while True:
            question = receive(connection, wait=idle_seconds, seconds=MESSAGE_SECONDS)
            send(connection, *_answered(answer, question), seconds=MESSAGE_SECONDS)
    except (TimeoutError, ConnectionError, WireError):
        return


def _answered(answer: Callable[[Message], Answer], question: Message) -> Answer:
    try:
        return answer(question)
    except InputError as error:
        return {"error": str(error)}, {}
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")[:200]
        return {"failed": f"{type(error).__name__}: {reason}"}, {}
