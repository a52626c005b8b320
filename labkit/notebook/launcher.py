"""The dashboard and TensorBoard as tiles of JupyterLab's launcher, by jupyter-server-proxy.

Jupyter's server starts each at the first click on its tile, on a free port of 127.0.0.1, and shows it below
its own address: whoever has Jupyter's token may see it. pyproject.toml names both functions as entry points.
"""

import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit import home
from labkit.run_directory import list_runs
from labkit.startup.child import python_command
from labkit.tensorboard.server import LOOPBACK

__all__ = ["dashboard", "tensorboard"]

SECONDS_TO_START = 120
ICONS = Path(__file__).parent / "icons"


def dashboard() -> dict[str, Any]:
    """Return how jupyter-server-proxy starts the dashboard. Without Streamlit there is no tile."""
    script = home.shipped("app") / "main.py"
    flags = {
        "server.address": LOOPBACK,
        "server.port": "{port}",
        "server.baseUrlPath": "{base_url}labkit-dashboard",
        "server.headless": "true",
        "server.showEmailPrompt": "false",
        "server.fileWatcherType": "none",
    }
    command = [*_python(), "streamlit", "run", _plain(script)]
    return {
        **_server("labkit dashboard", "dashboard.svg", enabled=find_spec("streamlit") is not None),
        "command": [*command, *(f"--{name}={value}" for name, value in flags.items())],
        # Jupyter's server has compared the browser's origin with its own. Streamlit knows only loopback.
        "request_headers_override": {"Origin": f"http://{LOOPBACK}:{{port}}"},
    }


def tensorboard() -> dict[str, Any]:
    """Return how jupyter-server-proxy starts TensorBoard on all runs, also those that begin later."""
    return {
        **_server("TensorBoard", "tensorboard.svg", enabled=True),
        "command": [*_python(), "labkit.notebook.launcher", "{port}", "{base_url}labkit-tensorboard"],
    }


def _server(title: str, icon: str, *, enabled: bool) -> dict[str, Any]:
    return {
        "timeout": SECONDS_TO_START,
        "absolute_url": True,  # both write links that begin with their base path
        "new_browser_tab": False,
        "launcher_entry": {
            "title": title,
            "icon_path": str(ICONS / icon),
            "category": "Notebook",  # JupyterLab shows icons from a server in this category alone
            "enabled": enabled,
        },
    }


def _python() -> list[str]:
    return [_plain(word) for word in python_command("-m")]


def _plain(path: object) -> str:
    """Return a path without braces that jupyter-server-proxy would take for names."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _serve_tensorboard(port: int, prefix: str) -> None:
    from labkit.tensorboard.log_folder import SECONDS_BETWEEN_LOOKS, log_folder
    from labkit.tensorboard.server import start_server

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes the folder
    with log_folder(lambda: list_runs(home.runs_home())) as folder:
        start_server(folder.path, port, prefix)
        while True:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            folder.refresh()


if __name__ == "__main__":
    _serve_tensorboard(int(sys.argv[1]), sys.argv[2])
