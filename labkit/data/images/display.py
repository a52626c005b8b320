"""How far reading has come: a bar on a terminal, a line for each quarter elsewhere."""

from collections.abc import Callable

__all__ = ["Display"]

_FEW = 1_000  # pictures that are read in a second need no lines


class Display:
    """Shows how many of a number of pictures are done; ``with`` starts and ends it."""

    def __init__(self, what: str, total: int, announce: Callable[[str], None]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(
            *columns, console=console, disable=not console.is_terminal or total < _FEW, transient=True
        )
        self._task = self._bar.add_task(what, total=total)
        self._what, self._total, self._announce = what, total, announce
        self._done = 0

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, count: int) -> None:
        """Count ``count`` more pictures as done."""
        before, self._done = self._done, self._done + count
        if not self._bar.disable:
            self._bar.update(self._task, completed=self._done)
        elif self._total >= _FEW and 4 * self._done // self._total > 4 * before // self._total:
            self._announce(f"{self._what}: {self._done:,} of {self._total:,} pictures")
