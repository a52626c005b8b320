"""The state of a run as the live page shows it, and what that page is drawn again for."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from app.acting import buttons
from app.charts.store import Snapshot
from labkit.run_directory import RunDirectory, Status

__all__ = ["STATES", "Frame", "frame_of", "liveness_of", "written"]

# The label, colour and icon of each state, and whether the page is refreshed every second.
STATES = {
    "starting": ("starting", "blue", ":material/hourglass_top:", True),
    "running": ("running", "green", ":material/play_circle:", True),
    "stalled": ("stalled", "orange", ":material/warning:", True),
    "lost": ("lost", "red", ":material/skull:", False),
    "finished": ("finished", "gray", ":material/check_circle:", False),
    "interrupted": ("interrupted", "orange", ":material/pause_circle:", False),
    "failed": ("failed", "red", ":material/error:", False),
    "no status": ("no status yet", "gray", ":material/help:", True),
}


@dataclass(frozen=True)
class Frame:
    """What the part of the live page depends on that isn't drawn every second."""

    refreshes: bool
    liveness: str
    message: str
    acting: Hashable
    environment: float  # when it was written
    names: tuple[str, ...]
    readable: bool
    damaged_lines: int
    has_tasks: bool


def frame_of(run: RunDirectory, metrics: Snapshot | None, failure: str) -> Frame:
    """Return the frame. ``failure``: why the visitor's last action failed. Uses no Streamlit."""
    status = run.read_status()
    liveness = liveness_of(status)
    return Frame(
        refreshes=STATES[liveness][3] or buttons.is_pending(run),
        liveness=liveness,
        message=status.message if status else "",
        acting=(status is None, failure, *buttons.state_of(run)),
        environment=written(run.environment_path),
        names=() if metrics is None else tuple(metrics.metrics()),
        readable=metrics is not None,
        damaged_lines=metrics.damaged_lines if metrics else 0,
        has_tasks=run.cluster_path.is_dir(),
    )


def liveness_of(status: Status | None) -> str:
    """Return a key of ``STATES``."""
    liveness = status.liveness() if status else "no status"
    return liveness if liveness in STATES else "no status"


def written(path: Path) -> float:
    """Return when a file was written, in seconds since 1970; 0 without one."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
