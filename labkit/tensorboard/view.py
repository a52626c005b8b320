"""TensorBoard in a notebook: a server that ends with this process, and the frame that shows it."""

import atexit
import os
import select
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import urlsplit

from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.startup.child import import_path, python_command
from labkit.tensorboard.log_folder import shown_names

SECONDS_TO_START = 120.0
SHOW_IF_IT_ANSWERS = """{const frame = document.currentScript.previousElementSibling;
fetch(frame.src, {mode: "no-cors"}).then(() => {frame.hidden = false}, () => {})}"""
PROXY = "TENSORBOARD_PROXY_URL"  # TensorBoard's own variable for notebooks behind a proxy

_SHOWN: dict[tuple[str, ...], "TensorBoard"] = {}


class TensorBoard:
    """A TensorBoard of some runs, on a free port of 127.0.0.1, which ends with this process at the latest.

    A notebook shows it as a frame, a saved one the link and the command: a frame would be grey and empty.

    Args:
        runs: the runs to show.

    Raises RuntimeError if TensorBoard doesn't start.
    """

    def __init__(self, runs: Sequence[RunDirectory]) -> None:
        self.runs = list(shown_names(runs).values())
        command = python_command("-m", "labkit.tensorboard.server", *(run.path for run in self.runs))
        with tempfile.TemporaryFile("w+") as said:
            # In a session of its own, because Jupyter interrupts all processes of the kernel's group.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "PYTHONPATH": import_path()},
                start_new_session=True,
            )
            assert self._process.stdout is not None
            answered, _, _ = select.select([self._process.stdout], [], [], SECONDS_TO_START)
            #: where it answers, such as ``http://127.0.0.1:6006/``
            self.address = self._process.stdout.readline().strip() if answered else ""
            if not self.address:
                self.close()
                said.seek(0)
                reason = (said.read().strip().splitlines() or [f"no answer after {SECONDS_TO_START:g} s"])[-1]
                raise RuntimeError(f"TensorBoard did not start: {reason}")
        atexit.register(self.close)

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def link(self) -> str:
        """The address for the browser: ``TENSORBOARD_PROXY_URL`` if that is set, else ``address``.

        ``%PORT%`` in the variable stands for the port. TensorBoard needs the final slash.
        """
        proxy, own = os.environ.get(PROXY), urlsplit(self.address)
        if not proxy:
            return self.address
        return proxy.replace("%PORT%", str(own.port)).rstrip("/") + own.path

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __repr__(self) -> str:
        ended = "" if self.running else ", ended"
        return f"<TensorBoard of {counted(len(self.runs), 'run')}: {self.link}{ended}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        command = shlex.join(["labkit", "tensorboard", *(str(run.path) for run in self.runs)])
        link = escape(self.link, quote=True)
        shown = (
            f'<iframe src="{link}" width="100%" height="800" style="border: 0" title="TensorBoard" hidden>'
            f"</iframe><script>{SHOW_IF_IT_ANSWERS}</script>"
            f'<p>TensorBoard: <a href="{link}" target="_blank">{link}</a>, as long as this notebook runs; '
            f"later: <code>{escape(command)}</code></p>"
        )
        return {"text/html": shown, "text/plain": f"TensorBoard: {self.link} (later: {command})"}


def show(runs: Sequence[RunDirectory]) -> TensorBoard:
    """Return the TensorBoard of these runs. One that this process started before is used again."""
    key = tuple(sorted(str(run.path.resolve()) for run in runs))
    if key not in _SHOWN or not _SHOWN[key].running:
        _SHOWN[key] = TensorBoard(runs)
    return _SHOWN[key]
