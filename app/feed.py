"""What changes every second on a page, fetched by the page's own code.

Streamlit would draw its page again for each change, which takes more of a core than the charts do. A page
offers a function that makes the newest state, and the browser asks for it at an address that only this page
knows.
"""

import hashlib
import json
import logging
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import streamlit as st
from starlette.requests import Request
from starlette.responses import Response

PATH = "/labkit/feed"  # of the addresses, below that of the dashboard
KEPT_SECONDS = 600.0  # that an address is known while nobody asks; the page then asks Streamlit for another
MOST = 512  # addresses


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


class _Offers:
    def __init__(self) -> None:
        self._makes: OrderedDict[str, tuple[Make, float]] = OrderedDict()  # the one used longest ago first
        self._lock = threading.Lock()

    def put(self, token: str, make: Make) -> None:
        now = time.monotonic()
        with self._lock:
            self._makes[token] = make, now
            self._makes.move_to_end(token)
            while len(self._makes) > MOST or next(iter(self._makes.values()))[1] < now - KEPT_SECONDS:
                self._makes.popitem(last=False)

    def get(self, token: str) -> Make | None:
        with self._lock:
            if token not in self._makes:
                return None
            make = self._makes[token][0]
            self._makes[token] = make, time.monotonic()
            self._makes.move_to_end(token)
            return make


_offers = _Offers()


def offer(name: str, make: Make) -> str:
    """Offer the newest state of a page to this visitor's browser. Returns the address, relative to a page's.

    Args:
        name: tells the pages of a visitor apart. The address of a name stays the same.
        make: is called in a thread for each question. It must not use Streamlit.
    """
    token: str = st.session_state.setdefault(f"feed-{name}", secrets.token_urlsafe(24))
    _offers.put(token, make)
    return f"{PATH.lstrip('/')}/{token}"


def answer(request: Request) -> Response:
    """Answer the browser: 404 for an address that isn't known (any more)."""
    make = _offers.get(request.path_params["token"])
    if make is None:
        return Response(status_code=404)
    try:
        update = make()
    except Exception:  # Streamlit draws the page again, and shows what is wrong
        logging.getLogger(__name__).exception("the page is drawn again")
        update = Update(is_stale=True)
    have = request.query_params.get("have", "").split(",")
    return Response(
        packed(update, have), media_type="application/octet-stream", headers={"Cache-Control": "no-store"}
    )


def packed(update: Update, have: Collection[str]) -> bytes:
    """Return the length of a JSON header, the header, and the boards that the browser doesn't have.

    Args:
        update: the newest state.
        have: versions of boards.
    """
    versions = {
        ident: hashlib.blake2b(board, digest_size=12).hexdigest() for ident, board in update.boards.items()
    }
    sent = [ident for ident, version in versions.items() if version not in have]
    header = {
        "html": update.html,
        "stale": update.is_stale,
        "boards": [[ident, versions[ident], len(update.boards[ident])] for ident in sent],
    }
    text = json.dumps(header).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(update.boards[ident] for ident in sent)])
