"""``labkit import``: runs made of other programs' logs."""

from typing import Annotated

from labkit.commands.flags import Flag, LocalPath
from labkit.plurals import counted
from labkit.recording import imports
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


def _tell(run: RunDirectory, log: imports.ImportedLog) -> None:
    told = log.told()
    print(f"{run.path}: {counted(len(log.rows), 'row')}{told and '; ' + told}")
