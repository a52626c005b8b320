"""What changes all the time on a page, fetched by the page's own code.

Streamlit would draw its page again for each change, which takes more of a core than the charts do. A page
offers a function that makes the newest state, and the browser asks for it at an address that only this page
knows. The answer waits until there is news.
"""

import asyncio
import hashlib
import json
import logging
import math
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

import psutil
import streamlit as st
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

PATH = "/labkit/feed"  # of the addresses, below that of the dashboard
KEPT_SECONDS = 600.0  # that an address is known while nobody asks; the page then asks Streamlit for another
MOST = 512  # addresses
APART_SECONDS = 1.0  # between two questions of a page, at least: drawing slows a training on the same machine
SPARE_APART_SECONDS = 0.5  # where a whole core had nothing to do since the last question
LONGEST_SECONDS = 0.9  # that an answer waits for news
LOOK_SECONDS = 0.1  # between two looks whether there is any


@dataclass(frozen=True)
class Update:
    """The newest state of a page.

    Args:
        html: of the figures at its head.
        boards: made by ``encode``, by their ``ident``.
        is_stale: whether a part of the page that Streamlit draws has changed, too.
    """

    html: str = ""
    boards: dict[str, bytes] = field(default_factory=dict)
    is_stale: bool = False


Make = Callable[[], Update]


@dataclass
class _Offer:
    make: Make
    look: Callable[[], Hashable]
    used: float  # when, by the clock of time.monotonic
    seen: Hashable = None  # what the look before the last answer gave
    idle: tuple[float, float] = 0.0, math.inf  # at the last answer: seconds, and those of idle cores

    def apart(self) -> float:
        """Return how long the page shall wait between its last question and the next."""
        (then, before), self.idle = self.idle, (time.monotonic(), psutil.cpu_times().idle)
        has_spare = self.idle[1] - before > self.idle[0] - then
        return SPARE_APART_SECONDS if has_spare else APART_SECONDS


class _Offers:
    def __init__(self) -> None:
        self._offers: OrderedDict[str, _Offer] = OrderedDict()  # the one used longest ago first
        self._lock = threading.Lock()

    def put(self, token: str, make: Make, look: Callable[[], Hashable]) -> None:
        now = time.monotonic()
        with self._lock:
            self._offers[token] = _Offer(make, look, now)
            self._offers.move_to_end(token)
            while len(self._offers) > MOST or next(iter(self._offers.values())).used < now - KEPT_SECONDS:
                self._offers.popitem(last=False)

    def get(self, token: str) -> _Offer | None:
        with self._lock:
            if token not in self._offers:
                return None
            self._offers[token].used = time.monotonic()
            self._offers.move_to_end(token)
            return self._offers[token]


_offers = _Offers()


def offer(name: str, make: Make, look: Callable[[], Hashable]) -> str:
    """Offer the newest state of a page to this visitor's browser. Returns the address, relative to a page's.

    Args:
        name: tells the pages of a visitor apart. The address of a name stays the same.
        make: is called in a thread for each answer. It must not use Streamlit.
        look: returns another value when there is news, for which an answer doesn't wait any longer. Called
            many times a second in a thread, it should read no more than a few file attributes.
    """
    token: str = st.session_state.setdefault(f"feed-{name}", secrets.token_urlsafe(24))
    _offers.put(token, make, look)
    return f"{PATH.lstrip('/')}/{token}"


async def answer(request: Request) -> Response:
    """Answer the browser once there is news, and after a while in any case.

    404 is the answer for an address that isn't known (any more).
    """
    offered = _offers.get(request.path_params["token"])
    if offered is None:
        return Response(status_code=404)
    end = time.monotonic() + LONGEST_SECONDS
    while (news := await run_in_threadpool(offered.look)) == offered.seen and time.monotonic() < end:
        await asyncio.sleep(LOOK_SECONDS)
    offered.seen = news
    have = request.query_params.get("have", "").split(",")
    return Response(
        await run_in_threadpool(lambda: packed(_made(offered.make), have, offered.apart())),
        media_type="application/octet-stream",
        headers={"Cache-Control": "no-store"},
    )


def _made(make: Make) -> Update:
    try:
        return make()
    except Exception:  # Streamlit draws the page again, and shows what is wrong
        logging.getLogger(__name__).exception("the page is drawn again")
        return Update(is_stale=True)


def packed(update: Update, have: Collection[str], apart: float = APART_SECONDS) -> bytes:
    """Return the length of a JSON header, the header, and the boards that the browser doesn't have.

    Args:
        update: the newest state.
        have: versions of boards.
        apart: seconds between this question of the page and its next, at least.
    """
    versions = {
        ident: hashlib.blake2b(board, digest_size=12).hexdigest() for ident, board in update.boards.items()
    }
    sent = [ident for ident, version in versions.items() if version not in have]
    header = {
        "html": update.html,
        "stale": update.is_stale,
        "seconds": apart,
        "boards": [[ident, versions[ident], len(update.boards[ident])] for ident in sent],
    }
    text = json.dumps(header).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(update.boards[ident] for ident in sent)])
