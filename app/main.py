"""What `streamlit run app/main.py` serves: the pages of navigation.py, and what they fetch every second."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread

import streamlit as st
from starlette.middleware import Middleware
from starlette.routing import Route

# Streamlit adds this file's folder to the path, but not the checkout that holds the packages.
CHECKOUT = str(Path(__file__).resolve().parents[1])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)

from app import feed, gate  # noqa: E402


@asynccontextmanager
async def _serving(app: st.App) -> AsyncIterator[None]:
    gate.announce()
    # While the browser loads Streamlit's code, so that the first page isn't kept waiting.
    Thread(
        target=lambda: [import_module(f"app.views.{name}") for name in ("live", "runs")], daemon=True
    ).start()
    yield


app = st.App(
    Path(__file__).with_name("navigation.py"),
    lifespan=_serving,
    routes=[
        Route(f"{gate.base()}{feed.PATH}/{{token}}", feed.answer),
        Route(gate.base() + gate.TOKEN_PATH, gate.token_page, methods=["GET", "POST"]),
    ],
    middleware=[Middleware(gate.Gate)],
)
