"""The run directory, which training, notebook, command line and dashboard share."""

from labkit.run_directory.directory import (
    ACTIVE_STATES,
    RunDirectory,
    RunLock,
    Status,
    list_runs,
    process_alive,
    write_json_atomic,
    write_text_atomic,
)

__all__ = [
    "ACTIVE_STATES",
    "RunDirectory",
    "RunLock",
    "Status",
    "list_runs",
    "process_alive",
    "write_json_atomic",
    "write_text_atomic",
]
