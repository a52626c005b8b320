"""``python app/on_socket.py SOCKET PREFIX``: the dashboard at a Unix socket, for a tile of JupyterLab.

``streamlit run`` knows no Unix sockets. A folder that only one account may enter keeps other accounts away.
"""

import os
import sys
from pathlib import Path

import uvicorn
from streamlit import config

CHECKOUT = Path(__file__).resolve().parents[1]


def main(path: str, prefix: str) -> None:
    """Serve until the process is ended. ``prefix``: of the addresses, such as ``/user/ada/dashboard``."""
    os.environ["LABKIT_TOKEN"] = ""  # Jupyter has asked for its own
    os.chdir(CHECKOUT / "app")  # whose .streamlit/config.toml Streamlit reads
    config.set_option("server.baseUrlPath", prefix)
    config.set_option("server.fileWatcherType", "none")
    sys.path.insert(0, str(CHECKOUT))
    uvicorn.run("app.main:app", uds=path, log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
