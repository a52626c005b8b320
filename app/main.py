"""What `streamlit run app/main.py` serves: the pages of navigation.py, and what they fetch every second."""

import sys
from pathlib import Path

import streamlit as st
from starlette.routing import Route

# Streamlit adds this file's folder to the path, but not the checkout that holds the packages.
CHECKOUT = str(Path(__file__).resolve().parents[1])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)

from app import feed  # noqa: E402


def _below(path: str) -> str:
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}{path}" if base else path


app = st.App(
    Path(__file__).with_name("navigation.py"),
    routes=[Route(_below(feed.PATH) + "/{token}", feed.answer)],
)
