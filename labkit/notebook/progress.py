"""The progress of a training in other processes, read from its run directory."""

import sys
from contextlib import suppress
from typing import Any

from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader
from labkit.training.console import Console, losses_in_words


class Progress:
    """Shows the progress of a run that other processes train. Rows of earlier sessions are skipped.

    ``step``: completed steps, as far as they were read.
    """

    def __init__(self, run: RunDirectory, total_steps: int) -> None:
        self.step = 0
        self._reader = MetricsReader(run.metrics_path)
        self._total = total_steps
        self._console: Console | None = None
        self._started, self._readable = False, True
        with suppress(OSError):
            self._reader.poll()
        self._known, self._seen = self._state(), len(self._reader.train)

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
            self._reader.poll()
        except OSError as error:
            print(f"progress can't be shown: {error}", file=sys.stderr, flush=True)
            self._readable = False
            return
        train, points = self._reader.train.view(), self._reader.resume_points
        if self._state() != self._known:  # the training was restarted
            self._known, self._started = self._state(), False
            self._seen = int((train.columns["step"] <= points[-1].step).sum()) if points else 0
            self._console.stop_progress()
        for row in train.rows("train", self._seen):
            self._show(self._console, row)
        self._seen = len(train)

    def _state(self) -> tuple[int, int]:
        return self._reader.generation, len(self._reader.resume_points)

    def _show(self, console: Console, row: dict[str, Any]) -> None:
        self.step = row["step"]
        if not self._started:
            self._started = True
            console.start_progress(self.step - 1, self._total)
        console.progress(self.step, losses_in_words(row), row["loss"])
