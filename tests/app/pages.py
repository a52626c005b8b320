"""Pages as a person opens them, without a browser, and what they say."""

import json
import re
import time
from html import unescape
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from labkit.run_directory import RunDirectory

PATIENCE = 120  # seconds, on a busy machine
NAVIGATION = Path(__file__).resolve().parents[2] / "app" / "navigation.py"
# That show the selected run.
PAGES = ("live", "layers", "media", "predictions", "image", "data", "image_map", "compare", "configuration")


def open_page(page: str, run: RunDirectory | str, /, **url: Any) -> AppTest:
    """Open a page of a run, without the sidebar. ``url``: parameters of the address."""
    at = AppTest.from_string(f"from app.views import {page}\n{page}.page()", default_timeout=PATIENCE)
    at.session_state["run"] = run if isinstance(run, str) else str(run.path)
    return _opened(at, url)


def open_main(page: str = "", **url: Any) -> AppTest:
    """Open the first page, or another one with the sidebar: AppTest opens no other page of a navigation."""
    script = f"from app import navigation\nfrom app.views import {page}\nnavigation.sidebar()\n{page}.page()"
    at = AppTest.from_string(script) if page else AppTest.from_file(str(NAVIGATION))
    at.default_timeout = PATIENCE
    return _opened(at, url)


def _opened(at: AppTest, url: dict[str, Any]) -> AppTest:
    for name, value in url.items():
        at.query_params[name] = value
    return checked(at.run())


def checked(at: AppTest) -> AppTest:
    """Check that the page raised no exception."""
    assert not at.exception, at.exception[0].message
    return at


def finished(at: AppTest) -> AppTest:
    """Run the page again until nothing is waited for."""
    end = time.monotonic() + PATIENCE
    while "hourglass" in words(at):
        assert time.monotonic() < end, words(at)
        time.sleep(0.3)
        checked(at.run())
    return at


def button(at: AppTest, label: str) -> Any:
    """Return the button, or None."""
    return next((one for one in at.button if one.label == label), None)


def press(at: AppTest, label: str) -> AppTest:
    button(at, label).click()
    return checked(at.run())


def unfold(at: AppTest, label: str, run: RunDirectory) -> AppTest:
    """Open the log or the checkpoints of a run."""
    at.session_state[f"{label}-of-{run.path}"] = True
    return checked(at.run())


def html_of(at: AppTest) -> str:
    """Return the HTML on a page, with that of cards that have boxes to tick."""
    drawn = [part.proto for part in at.get("bidi_component") if part.proto.component_name == "labkit_ticks"]
    return "".join([*(one.proto.body for one in at.get("html")), *(markup_of(part) for part in drawn)])


def commands_of(at: AppTest) -> list[str]:
    """Return the commands for a shell that are on a page, as its button copies them."""
    found = re.findall('<pre class="lk-command".*?<code>(.*?)</code>', html_of(at), re.DOTALL)
    return [unescape(re.sub("<[^>]*>", "", one)) for one in found]


def rows_of(at: AppTest, key: str = "runs-table") -> list[dict[str, Any]]:
    """Return the rows of a table of app/run_table, each with its cells by the names of the columns."""
    drawn = table_of(at, key)
    columns = [column["name"] for column in drawn["columns"]]
    return [{**row, **dict(zip(columns[1:], row["cells"], strict=True))} for row in drawn["rows"]]


def table_of(at: AppTest, key: str) -> dict[str, Any]:
    """Return what the browser gets of a table of app/run_table."""
    for part in at.get("bidi_component"):
        if part.proto.component_name == "labkit_table" and f"-{key}" in part.proto.id:
            return json.loads(part.proto.bytes)
    return {"columns": [], "rows": [], "view": None}


def tick(at: AppTest, *keys: str, table: str = "runs-table") -> AppTest:
    """Tick rows of such a table, which the browser names by their keys."""
    at.session_state[table] = {"ticked": list(keys)}
    return checked(at.run())


def markup_of(component: Any) -> str:
    """Return the HTML that a component draws."""
    return str(json.loads(component.json)["markup"])


def words(at: AppTest) -> str:
    """Return what a reader sees of the page's text, a line for each element."""
    kinds = ("title", "subheader", "caption", "markdown", "text", "info", "warning", "error", "toast", "code")
    parts = [element for kind in (*kinds, "metric") for element in at.get(kind)]
    # Markdown shows a character after a backslash as it is.
    texts = [re.sub(r"\\([^\w\s]|_)", r"\1", f"{getattr(part, 'label', '')} {part.value}") for part in parts]
    texts.append(unescape(re.sub("<[^>]*>", " ", html_of(at))))
    return "\n".join(" ".join(text.split()) for text in texts)
