"""A folder of links to the events of runs, which gives TensorBoard the runs' own names.

TensorBoard names what it shows after the folders below its log folder. Its flag for names of one's own splits
them at commas and colons, and has no fast loader.
"""

import os
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import InputError
from labkit.run_directory import ACTIVE_STATES, RunDirectory
from labkit.run_directory.directory import check_folders
from labkit.run_directory.files import open_run_file

SECONDS_BETWEEN_LOOKS = 5.0  # for what is new; TensorBoard itself looks this often
DEBUGGER_FOLDER = "debugger"  # below a run's events
_DUMP_FILES = "tfdbg_events.*"


def shown_names(runs: Sequence[RunDirectory]) -> dict[str, RunDirectory]:
    """Return the runs by the names that TensorBoard shows, each run once.

    That is a run's own name; for runs of one name also the folders that tell them apart: ``a in first``.
    """
    paths = [run.path for run in {run.path.resolve(): run for run in runs}.values()]
    names = {path: path.name for path in paths}
    for parts in range(2, max((len(path.parts) for path in paths), default=0)):
        counts = Counter(names.values())
        for path in paths:
            if counts[names[path]] > 1:
                names[path] = " in ".join(reversed(path.parts[-parts:]))
    return {name: RunDirectory(path) for path, name in names.items()}


class LogFolder:
    """Links to the events of runs.

    Args:
        path: an empty folder.
        runs: returns the runs to show; called again by ``refresh``.
    """

    def __init__(self, path: Path, runs: Callable[[], Sequence[RunDirectory]]) -> None:
        self.path, self._runs = path, runs
        self.runs: dict[str, RunDirectory] = {}
        self.debugged = ""  # the name of the run that the Debugger V2 page shows
        self.refresh()
        self._link_dump()

    def refresh(self) -> None:
        """Link what is new, and remove the runs that are gone."""
        found = shown_names(self._runs())
        for name in self.runs.keys() - found.keys():
            shutil.rmtree(self.path / name)
        for name, run in found.items():
            (self.path / name).mkdir(exist_ok=True)
            try:
                check_folders(run)  # TensorBoard would follow links and show what they lead to
            except InputError:
                continue
            # The profiler's page doesn't look for plugins/profile behind links.
            for source in (*run.events_path.glob("*"), *run.events_path.glob("plugins/profile/*")):
                link = self.path / name / source.relative_to(run.events_path)
                is_content = source.is_file() or (source.is_dir() and source.name != "plugins")
                if is_content and not link.is_symlink():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(source)
        self.runs = found

    def _link_dump(self) -> None:
        """Link the newest dump of Debugger V2, which TensorBoard reads from the log folder itself."""
        dumps = {name: list((self.path / name / DEBUGGER_FOLDER).glob(_DUMP_FILES)) for name in self.runs}
        dumps = {name: files for name, files in dumps.items() if files}
        if dumps:
            self.debugged = max(dumps, key=lambda name: max(path.stat().st_mtime for path in dumps[name]))
            for file in dumps[self.debugged]:
                (self.path / file.name).symlink_to(file)

    def notes(self) -> list[str]:
        """Return a sentence for each run without events, and for each damaged file."""
        found = []
        for name, run in self.runs.items():
            files = sorted(run.events_path.rglob("*.tfevents.*"))
            try:
                check_folders(run)
            except InputError as error:
                found.append(f"run {name} isn't shown: {error}")
                continue
            if not files:
                found.append(f"run {name} has no events yet; TensorBoard shows them once they are written")
            status = run.read_status()
            if status is None or status.liveness() not in ACTIVE_STATES:  # the others write at this moment
                found += filter(None, map(damage, files))
        return found


def damage(path: Path) -> str | None:
    """Return a sentence if the file's records don't end where the file does, else None.

    A record is its length (uint64), a checksum of that (uint32), as many bytes, and their checksum (uint32).
    A wrong length makes a later record seem to reach beyond the end of the file. Checksums aren't compared.
    """
    try:
        file = open_run_file(path)
    except OSError as error:
        return f"{path} can't be read: {error.strerror}"
    start = 0
    with file:
        size = os.fstat(file.fileno()).st_size
        while start < size:
            file.seek(start)
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
            if not 0 < length <= size - start - 16:
                return (
                    f"{path} is damaged from byte {start:,} of {size:,} on; TensorBoard shows what is before"
                )
            start += 16 + length
    return None


@contextmanager
def log_folder(runs: Callable[[], Sequence[RunDirectory]]) -> Iterator[LogFolder]:
    """Make a temporary ``LogFolder``, which ends with the block; the runs are left alone."""
    with tempfile.TemporaryDirectory(prefix="labkit-tensorboard-") as path:
        yield LogFolder(Path(path), runs)
