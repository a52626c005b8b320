"""What is measured around a run, kept as a small JSON file beside its directory."""

from collections.abc import Mapping
from typing import Any

from labkit.analysis.comparison.read_runs import measurements_path, read_measurements
from labkit.run_directory import RunDirectory, write_json_atomic

__all__ = ["add_peak_memory", "discard_measurements", "update_measurements"]


def update_measurements(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Add ``values`` to what is known of a run, or replace them."""
    write_json_atomic(measurements_path(run), {**read_measurements(run), **values})


def add_peak_memory(run: RunDirectory, peak_memory_bytes: int | None) -> None:
    """Keep the largest resident set of all sessions of a training; None is one that isn't known."""
    before = read_measurements(run).get("peak_memory_bytes") or 0
    if peak_memory_bytes is not None and peak_memory_bytes > before:
        update_measurements(run, {"peak_memory_bytes": peak_memory_bytes})


def discard_measurements(run: RunDirectory) -> None:
    """Forget what was measured around a run that isn't there any more."""
    measurements_path(run).unlink(missing_ok=True)
