"""Who reaches the dashboard, and who may act on runs: decided before Streamlit sees a request.

- The Host of a request is an address or a name of this server. So a page elsewhere can't reach it by a name
  that was made to lead here (DNS rebinding).
- The Origin, if there is one, is this server's own, its port included. A WebSocket must have one.
- No other page may show it in a frame.
- Where other people could reach it, what acts needs the token that the server prints.
"""

import functools
import hmac
import ipaddress
import os
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labkit.distributed.task import is_loopback
from labkit.startup.others import other_users

TOKEN_PATH = "/labkit/token"
COOKIE = "labkit_token"
LONGEST_FORM = 4096  # bytes
FRAMES = "frame-ancestors 'self'"
SECONDS_TO_LISTEN = 30.0


# ---- the token -------------------------------------------------------------------------------------------


@functools.cache
def _token() -> str:
    """Return the token; "" where none is needed. ``LABKIT_TOKEN`` sets it, and if it is empty, there is none.

    Otherwise one is drawn where other people are on this machine, or can reach it over the network.
    """
    named = os.environ.pop("LABKIT_TOKEN", None)  # what is started from here doesn't need it
    if named is not None:
        return named
    open_to_others = not is_loopback(str(st.get_option("server.address"))) or other_users()
    return secrets.token_urlsafe(24) if open_to_others else ""


def needs_token() -> bool:
    """Return whether what acts needs a token on this server."""
    return bool(_token())


def is_locked() -> bool:
    """Return whether the browser of this visitor hasn't given the token that acting needs."""
    return needs_token() and not _same(st.context.cookies.get(COOKIE, ""), _cookie())


def announce() -> None:
    """Print the address with the token, if one is needed, and open it where labkit dashboard asks for it."""
    if not needs_token():
        return
    host, port = str(st.get_option("server.address") or "127.0.0.1"), int(st.get_option("server.port"))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    host = f"[{host}]" if ":" in host else host
    address = f"http://{host}:{port}{base()}/?token={_token()}"
    print(f"To start, stop and delete runs, open {address}", flush=True)
    if os.environ.pop("LABKIT_OPEN_BROWSER", ""):
        threading.Thread(target=_open, args=(address, host.strip("[]"), port), daemon=True).start()


def _open(address: str, host: str, port: int) -> None:
    """Open a browser once the server listens, by a file: others can read the arguments of processes."""
    end = time.monotonic() + SECONDS_TO_LISTEN
    while time.monotonic() < end:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            if probe.connect_ex((host, port)) == 0:
                break
        time.sleep(0.1)
    page = Path(tempfile.mkdtemp(prefix="labkit-")) / "open.html"  # a folder that only this account enters
    page.write_text(f'<meta http-equiv="refresh" content="0; url={escape(address)}">')
    webbrowser.open(page.as_uri())


@functools.cache
def _cookie() -> str:
    return secrets.token_urlsafe(24)  # says nothing about the token


def _is_token(given: str) -> bool:
    return needs_token() and _same(given, _token())


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def base() -> str:
    """Return the path below which the dashboard is served, such as ``/lab``; "" for the root."""
    path = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{path}" if path else ""


def _unlocked(place: str) -> Response:
    answer = RedirectResponse(place, status_code=303)
    answer.set_cookie(COOKIE, _cookie(), httponly=True, samesite="strict", path=base() or "/")
    return answer


async def token_page(request: Request) -> Response:
    """Ask for the token, and take it. The right one goes into a cookie of this browser."""
    said = ""
    if request.method == "POST":
        size = request.headers.get("content-length", "")
        if not size.isdecimal() or int(size) > LONGEST_FORM:
            return PlainTextResponse("too long", status_code=413)
        given = parse_qs((await request.body()).decode(errors="replace")).get("token", [""])[0]
        if _is_token(given.strip()):
            return _unlocked("../")
        said = "This isn't the token."
    return HTMLResponse(_form(said), status_code=403 if said else 200)


def _form(said: str) -> str:
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>labkit: token</title>"
        "<body style='font: 16px sans-serif; max-width: 32em; margin: 4em auto'>"
        "<h1 style='font-size: 1.3em'>Token</h1><p>The server prints a token at its start. With it, this "
        f"browser may start, stop and delete runs.</p><p><b>{escape(said)}</b></p>"
        "<form method=post><input name=token type=password autofocus size=40 aria-label=Token> "
        "<button>Go on</button></form></body></html>"
    )


# ---- the gate --------------------------------------------------------------------------------------------


class Gate:
    """A middleware in front of all pages, files and WebSockets of the dashboard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass, without its Origin: Streamlit would ask a server elsewhere about it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        server: Any = scope.get("server")
        private = server is None or server[1] is None  # by a Unix socket: its folder has let nobody else in
        why = "" if private else _refusal(headers, needs_origin=scope["type"] == "websocket")
        if why and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why[:120]})
            return
        if why:
            await PlainTextResponse(f"labkit: {why}\n", status_code=403)(scope, receive, send)
            return
        if scope["type"] == "http" and needs_token() and "token" in Request(scope).query_params:
            await _with_token(Request(scope))(scope, receive, send)
            return

        async def unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                sent.append("Content-Security-Policy", FRAMES)
                sent["X-Frame-Options"] = "SAMEORIGIN"
            await send(message)

        passed = [(name, value) for name, value in scope["headers"] if name != b"origin"]
        await self._app({**scope, "headers": passed}, receive, unframed)


def _with_token(request: Request) -> Response:
    """Take the token from the address, and lead to the address without it."""
    if not _is_token(request.query_params["token"]):
        return HTMLResponse(_form("This isn't the token."), status_code=403)
    rest = str(request.url.remove_query_params("token"))
    parts = urlsplit(rest)
    path = "/" + parts.path.lstrip("/")  # two in front would name a host
    return _unlocked(path + (f"?{parts.query}" if parts.query else ""))


def _refusal(headers: Headers, *, needs_origin: bool) -> str:
    """Return why a request doesn't pass, in a sentence; "" if it does."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if "@" in host or not _is_own(_name_of(f"//{host}"), _names()):
        return f"{host[:200]!r} is no name of this dashboard; LABKIT_HOSTS takes further names, with commas"
    if origin is None:
        site, mode = headers.get("sec-fetch-site", ""), headers.get("sec-fetch-mode", "navigate")
        if needs_origin or (site in ("cross-site", "same-site") and mode != "navigate"):
            return "this request isn't from a page of this dashboard"
    elif not _is_own_origin(origin, host):
        return f"the page at {origin[:200]!r} isn't of this dashboard, whose address is {host!r}"
    return ""


def _is_own_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    # A proxy in front may speak to this server by another name than the browser speaks to it.
    return parts.netloc.lower() == host.lower() or parts.netloc.lower() in _further_names()


def _name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower().rstrip(".")
    except ValueError:
        return ""


def _is_own(name: str, names: list[str]) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True  # nobody can make a number lead elsewhere
    return any(name.endswith(one[1:]) if one.startswith("*.") else name == one for one in names if name)


def _names() -> list[str]:
    """Return the names by which browsers may reach this server."""
    address = str(st.get_option("server.address") or "")
    own = [] if is_loopback(address) else [socket.gethostname().lower(), address.lower()]
    return ["localhost", *own, *(name.partition(":")[0] for name in _further_names())]


def _further_names() -> list[str]:
    """Return those that were named, and that of a codespace, whose proxy calls this server localhost.

    A name is with its port, unless that is the one of http or https. ``*.`` in front stands for any name of
    the domain in a Host; of an Origin, which could be somebody else's there, the whole name has to be given.
    """
    named = os.environ.get("LABKIT_HOSTS", "").replace(",", " ").lower().split()
    if space := os.environ.get("CODESPACE_NAME"):
        domain = os.environ.get("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN", "app.github.dev")
        named.append(f"{space}-{st.get_option('server.port')}.{domain}".lower())
    return named
