"""The dashboard and TensorBoard as tiles of JupyterLab's launcher, by jupyter-server-proxy.

Jupyter's server starts each at the first click on its tile and shows it below its own address: whoever has
Jupyter's token may see it, and act on runs. pyproject.toml names both functions as entry points.
"""

import os
import secrets
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit import home
from labkit.run_directory import list_runs
from labkit.startup.child import python_command

SECONDS_TO_START = 120
SECRET = secrets.token_urlsafe(16)  # TensorBoard knows no Unix sockets, and others can connect to its port
PREFIX = "LABKIT_TENSORBOARD_PREFIX"
ICONS = Path(__file__).parent / "icons"


def dashboard() -> dict[str, Any]:
    """Return how jupyter-server-proxy starts the dashboard. Without Streamlit there is no tile."""
    script = home.shipped("app") / "on_socket.py"
    return {
        **_server("labkit dashboard", "dashboard.svg", enabled=find_spec("streamlit") is not None),
        # In a folder that only this account may enter: other users of the machine can't connect.
        "unix_socket": True,
        "command": [*_python(script), "{unix_socket}", "{base_url}labkit-dashboard"],
    }


def tensorboard() -> dict[str, Any]:
    """Return how jupyter-server-proxy starts TensorBoard on all runs, also those that begin later."""
    server = _server("TensorBoard", "tensorboard.svg", enabled=True)
    server["launcher_entry"]["path_info"] = f"labkit-tensorboard/{SECRET}/"
    # Others can read the arguments of processes, but not their environment.
    prefix = {PREFIX: f"{{base_url}}labkit-tensorboard/{SECRET}"}
    return {
        **server,
        "environment": prefix,
        "command": [*_python("-m", "labkit.notebook.launcher"), "{port}"],
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


def _python(*arguments: object) -> list[str]:
    """Return a command line without braces that jupyter-server-proxy would take for names."""
    return [word.replace("{", "{{").replace("}", "}}") for word in python_command(*arguments)]


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
    _serve_tensorboard(int(sys.argv[1]), os.environ[PREFIX])
