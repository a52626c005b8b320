"""``labkit import`` and ``labkit pull``: runs of other programs and of other machines."""

import shlex
from pathlib import Path
from typing import Annotated

from labkit import home
from labkit.commands.flags import Flag, LocalPath
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.recording import imports
from labkit.recording.pull import Pull
from labkit.run_directory import RunDirectory


def import_csv(
    file: Annotated[LocalPath, Flag(metavar="FILE.csv")],
    /,
    *,
    name: str | None = None,
    step: str = "step",
    overwrite: bool = False,
) -> int:
    """Make a run of a CSV file. Returns 0.

    The file has a line of names, a column of steps, and one for each metric. A column named split, or a name
    such as val_loss, tells the split of a value.

    Args:
        file: The file, in UTF-8.
        name: Name of the run. Default: that of the file.
        step: Column of the steps, such as epoch.
        overwrite: Discards a run of this name.
    """
    _tell(*imports.import_csv(file, name, step=step, overwrite=overwrite))
    return 0


def import_tensorboard(
    folder: Annotated[LocalPath, Flag(metavar="DIR")], /, *, name: str | None = None, overwrite: bool = False
) -> int:
    """Make runs of a folder of TensorBoard's event files, of their scalars. Returns 0.

    A folder named train, validation or the like is a split of the run around it, as Keras writes them. A tag
    such as Loss/val tells its split, too.

    Args:
        folder: The folder, with others in it or not; each with event files becomes a run.
        name: Name of the run, or the beginning of the runs' names. Default: that of the folder.
        overwrite: Discards runs of these names.
    """
    for made in imports.import_tensorboard(folder, name, overwrite=overwrite):
        _tell(*made)
    return 0


def pull(
    source: Annotated[str, Flag(metavar="HOST:FOLDER")],
    /,
    *,
    into: LocalPath | None = None,
    every: float = 2.0,
    once: bool = False,
    ssh: str = "ssh",
) -> int:
    """Copy runs of another machine over ssh, and what is added to them. Returns 0.

    Rows, logs, predictions, media and code are copied; checkpoints and events stay there. It goes on until
    Ctrl-C, or until a single run has ended. Both machines need rsync.

    Args:
        source: A folder with runs, or a run, such as gpu7:labkit/runs.
        into: Folder for the runs. Default: that of your own runs.
        every: Seconds between two copies.
        once: Copies once and ends.
        ssh: Command that reaches the host, such as "ssh -p 2222".
    """
    if not 0.1 <= every <= 86400:
        raise InputError(f"--every is {every:g}; allowed: 0.1 to 86400 seconds")
    try:
        words = shlex.split(ssh)
    except ValueError:  # a quotation mark without its partner
        words = []
    if not words:
        raise InputError(f"--ssh is {ssh!r}; allowed: a command such as ssh -p 2222")
    copies = Pull(source, home.runs_home() if into is None else Path(home.expanded(into)), words)
    for line in copies.follow(None if once else every):
        print(line)
    return 0


def _tell(run: RunDirectory, log: imports.ImportedLog) -> None:
    told = log.told()
    print(f"{run.path}: {counted(len(log.rows), 'row')}{told and '; ' + told}")
