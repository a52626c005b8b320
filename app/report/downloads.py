"""The button of the live page and the comparison that hands out reports and metrics as files."""

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app.markup import plain, show_command
from labkit.errors import InputError
from labkit.export.metrics import write_metrics
from labkit.run_directory import RunDirectory

# Streamlit keeps a file in memory while it is downloaded. The command line has no such limit.
MAX_METRICS_BYTES = 500_000_000
LOOK: dict[str, Any] = {"on_click": "ignore", "width": "stretch"}  # of the buttons
MAX_LISTED = 8  # runs of a report, as of `labkit report`


def share(runs: Sequence[RunDirectory], key: str) -> None:
    """Draw the button. What is behind it is made when it is clicked, from the files as they are then.

    Args:
        runs: one run, or those of a comparison.
        key: of the button on its page.
    """
    runs = list({run.path: run for run in runs}.values())  # one may be given by its name and by its path
    name = file_name(runs[0]) if len(runs) == 1 else "comparison"
    with st.popover("Share", icon=":material/ios_share:", help="Report and metrics as files"):
        if len(runs) > MAX_LISTED:
            st.caption(f"A report compares up to {MAX_LISTED} runs. Choose fewer for one.")
            return
        st.download_button(
            "Report as HTML",
            lambda: _report(runs),
            f"{name}.html",
            "text/html",
            key=f"report-{key}",
            icon=":material/description:",
            help="One file with the charts, the results and the configuration. It opens without a network.",
            **LOOK,
        )
        for run in runs:
            _metrics(run, f"{key}-{run.path}", alone=len(runs) == 1)


def _metrics(run: RunDirectory, key: str, *, alone: bool) -> None:
    """Draw the buttons of a run's metrics: all points, as they were recorded."""
    try:
        size = run.metrics_path.stat().st_size
    except OSError:
        return
    if size > MAX_METRICS_BYTES:
        st.caption("The metrics are too large to be sent to a browser. In a shell:")
        show_command(f"labkit metrics {shlex.quote(str(run.path))} --output metrics.parquet")
        return
    for ending, format in ((".csv", "CSV"), (".parquet", "Parquet")):
        label = f"Metrics as {format}" if alone else f"{format}: {run.name}"
        st.download_button(
            plain(label),
            lambda ending=ending: _file(run, ending),  # type: ignore[misc]
            f"{file_name(run)}-metrics{ending}",
            "text/csv" if ending == ".csv" else "application/vnd.apache.parquet",
            key=f"metrics{ending}-{key}",
            icon=":material/table:",
            help="All metrics of every step, as they were recorded.",
            **LOOK,
        )


def _report(runs: Sequence[RunDirectory]) -> bytes:
    from app.report.document import refusal, report  # which use the pages that have this button

    try:
        return report(runs).encode(errors="replace")
    except InputError as error:  # the run was deleted meanwhile
        return refusal(str(error)).encode(errors="replace")


def _file(run: RunDirectory, ending: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="labkit-metrics-") as folder:
        path = Path(folder) / f"metrics{ending}"
        write_metrics(run, path)
        return path.read_bytes()


def file_name(run: RunDirectory) -> str:
    """Return the name of a run without what a file's name can't hold everywhere."""
    return re.sub(r"[^\w.-]+", "-", run.name.encode(errors="replace").decode()).strip(".-")[:100] or "run"
