"""The progress of a training in other processes, read from its run directory."""

import sys
from contextlib import suppress
from typing import Any

from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader
from labkit.training.console import Console, losses_in_words

__all__ = ["Progress"]


class Progress:
    """Shows the progress of a run that other processes train. Rows of earlier sessions are skipped.

    ``step``: completed steps, as far as they were read.
    """

    def __init__(self, run: RunDirectory, total_steps: int) -> None:
        self.step = 0
        self._reader = MetricsReader(run.metrics_path, keep_rows=False)
        self._total = total_steps
        self._console: Console | None = None
        self._started, self._readable = False, True
        with suppress(OSError):
            self._reader.poll()
        self._known = (self._reader.generation, len(self._reader.resume_points))

    def __enter__(self) -> "Progress":
        self._console, self._started = Console(), False
        return self

    def __exit__(self, *error: object) -> None:
        assert self._console is not None
        self._console.close()
        self._console = None

    def poll(self) -> None:
        """Read new rows and show the last one. The training continues where they can't be read."""
        assert self._console is not None
        if not self._readable:
            return
        try:
            rows = self._reader.poll()
        except OSError as error:
            print(f"progress can't be shown: {error}", file=sys.stderr, flush=True)
            self._readable = False
            return
        state = (self._reader.generation, len(self._reader.resume_points))
        if state != self._known:  # the training was restarted
            self._known, self._started = state, False
            self._console.stop_progress()
        for row in rows:
            if row.get("split") == "train":
                self._show(self._console, row)

    def _show(self, console: Console, row: dict[str, Any]) -> None:
        self.step = row["step"]
        if not self._started:
            self._started = True
            console.start_progress(self.step - 1, self._total)
        console.progress(self.step, losses_in_words(row), row["loss"])
