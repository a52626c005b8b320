"""What `streamlit run app/main.py` serves: the pages of navigation.py, and what they fetch every second."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread

import streamlit as st
from starlette.routing import Route

# Streamlit adds this file's folder to the path, but not the checkout that holds the packages.
CHECKOUT = str(Path(__file__).resolve().parents[1])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)

from app import feed, views  # noqa: E402


def _import_the_pages() -> None:
    for module in iter_modules(views.__path__, f"{views.__name__}."):
        import_module(module.name)


@asynccontextmanager
async def _lifespan(_: st.App) -> AsyncIterator[None]:
    """Import the pages while the browser starts: all together take a second."""
    Thread(target=_import_the_pages, daemon=True).start()
    yield


def _below(path: str) -> str:
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}{path}" if base else path


app = st.App(
    Path(__file__).with_name("navigation.py"),
    lifespan=_lifespan,
    routes=[Route(_below(feed.PATH) + "/{token}", feed.answer)],
)
