"""``labkit serve``: a run's network behind an address of this machine."""

from typing import Annotated

from labkit.commands.flags import DataDir, Flag, RunName
from labkit.errors import InputError, require_extra
from labkit.run_directory.find import run_to_read


def serve(
    run: RunName,
    *,
    checkpoint: Annotated[str, Flag(metavar="best|last|STEP")] = "best",
    port: int = 8600,
    data_dir: DataDir | None = None,
) -> int:
    """Answer what a run's network sees on pictures that are sent to it, until Ctrl-C. Returns 0.

    A page to drop a picture on is at the printed address. Programs send a picture file with POST to /predict
    and get JSON; ?top=3 tells more classes. GET /ready answers once the network is there. It listens on
    127.0.0.1 alone.

    Args:
        checkpoint: Checkpoint to ask: best (on validation; without it, the newest), last, or a step.
        port: Port to listen on; 0 takes a free one.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}; allowed: 0 to 65535")
    require_extra("app", ("starlette", "uvicorn"), "labkit serve")
    from labkit.analysis.serve import serve_network

    serve_network(run_to_read(run), checkpoint, port, data_dir)
    return 0
