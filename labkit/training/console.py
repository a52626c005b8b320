"""Lines for people: a bar in a terminal, plain lines elsewhere, in a notebook a display that ends static."""

import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Console", "format_duration", "step_line"]


def format_duration(seconds: float | None) -> str:
    """Return ``1:02:03`` or ``2:03``; ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def step_line(row: dict[str, Any], total_steps: int, average: float | None, eta_seconds: float | None) -> str:
    """Return the console's line of a training step. Seconds are per batch; examples per second are global."""
    return (
        f"step {row['step']}/{total_steps}  epoch {row['epoch']:.2f}  loss {row['loss']:.4f}  "
        f"accuracy {row['accuracy']:.3f}  learning_rate {row['learning_rate']:.5g}  "
        f"examples/s {row['examples_per_second']:.0f} (average {average or row['examples_per_second']:.0f})  "
        f"s/batch {row['seconds_per_step']:.3f}  input wait {row['input_wait_fraction']:.1%}  "
        f"ETA {format_duration(eta_seconds)}"
    )


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Console:
    """Print lines, keep them in ``out.log``, and show how far the run is.

    Args:
        log_path: where every line is appended with its time, or None.
    """

    def __init__(self, log_path: Path | None = None) -> None:
        self._log = open(log_path, "a", buffering=1) if log_path else None  # noqa: SIM115 - held until close
        self._bar: Any = None
        self._notebook = _in_notebook()

    def line(self, text: str) -> None:
        """Print one line."""
        if self._log:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        if self._bar is not None and not self._notebook:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def start_progress(self, completed: int, total: int) -> None:
        """Show a bar from here on, where there is something to show it on."""
        if self._notebook:
            self._bar = _NotebookBar(completed, total)
        elif sys.stdout.isatty():
            self._bar = _terminal_bar(completed, total)

    def progress(self, completed: int, text: str) -> None:
        """Move the bar."""
        if self._bar is None:
            return
        if self._notebook:
            self._bar.update(completed, text)
        else:
            self._bar.update(self._bar.task_ids[0], completed=completed, text=text)

    def stop_progress(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def close(self) -> None:
        self.stop_progress()
        if self._log:
            self._log.close()
            self._log = None


def _terminal_bar(completed: int, total: int) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    bar.add_task("training", total=total, completed=completed, text="")
    bar.start()
    return bar


class _NotebookBar:
    """One HTML output that is replaced in place: what a saved notebook keeps is its last, static state."""

    SECONDS_BETWEEN_UPDATES = 0.5

    def __init__(self, completed: int, total: int) -> None:
        from IPython.display import display

        self._total = total
        self._state = (completed, "")
        self._shown = time.monotonic()
        self._handle = display(self._render(), display_id=True)

    def _render(self) -> Any:
        from html import escape

        from IPython.display import HTML

        completed, text = self._state
        return HTML(
            f"<progress value='{completed}' max='{self._total}' style='width:20em'></progress> "
            f"<code>{completed}/{self._total} {escape(text)}</code>"
        )

    def update(self, completed: int, text: str) -> None:
        self._state = (completed, text)
        if time.monotonic() - self._shown >= self.SECONDS_BETWEEN_UPDATES:
            self._shown = time.monotonic()
            self._handle.update(self._render())

    def stop(self) -> None:
        self._handle.update(self._render())
