"""Export a run, for the command line and Python. TensorFlow is imported only after the checks."""

import os
from collections.abc import Callable
from pathlib import Path

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run, recorded_manifest
from labkit.errors import InputError
from labkit.export.output import FORMATS, ExportRequest, ExportResult, check_installed, check_output
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import check_checkpoint
from labkit.run_directory.directory import check_folders
from labkit.startup.quiet_import import import_without_gpus


def export(
    job_dir: str,
    *,
    checkpoint: str = "best",
    format: str = "keras",
    output: str | os.PathLike[str] | None = None,
    standardized_input: bool = False,
    probabilities: bool = False,
    check: bool = False,
    data_dir: str | None = None,
    overwrite: bool = False,
    announce: Callable[[str], None] = lambda line: None,
) -> ExportResult:
    """Write a checkpoint of a run as a file that works without labkit, and ``<file>.json``, its description.

    The exported network uses float32 and channels last and accepts any batch size.

    Args:
        job_dir: the run directory.
        checkpoint: Checkpoint to export: ``best`` (on validation; without it, the newest), ``last``, or a
            step.
        format: Format of the file.
        output: File to write; for ``saved_model`` a folder. Default: named after the run, in the current
            folder.
        standardized_input: Makes the network take standardized images instead of pixels from 0 to 255.
        probabilities: Returns probabilities instead of logits.
        check: Compares the file, read by a process without labkit, with the run's own network on every test
            image. Where they differ nothing is written, and the exit code is 1.
        data_dir: Folder of data sets. Default: the run's. Images are needed only to check: without the data
            set, its classes and statistics are those that the run recorded.
        overwrite: Replaces an output that is there.
        announce: called with lines about the progress.

    Returns:
        The path, the step, the description, and the result of the check.

    Raises:
        InputError: the run, the checkpoint, the data set or a package is missing, or the output can't be
            written.
    """
    run = RunDirectory(job_dir)
    check_folders(run)
    config = recorded_config(run)
    if format not in FORMATS:
        raise InputError(f"--format is {format!r}; allowed: {', '.join(FORMATS)}")
    kind = FORMATS[format]
    path = Path(os.path.abspath(expanded(output or run.name + kind.ending)))
    check_output(path, kind, overwrite=overwrite)
    check_installed(kind)
    manifest, note = _data(run, config, data_dir, check)
    if probabilities and manifest.targets == "numbers":
        raise InputError("--probabilities needs classes; this run's network gives numbers; leave it out")
    if check and not manifest.count("test"):
        raise InputError(
            f"--check needs test images, but {manifest.dataset} in {manifest.directory} has none"
        )
    check_checkpoint(run.checkpoints_path, checkpoint)
    if note:
        announce(note)

    import_without_gpus()
    from labkit.export.write import write_export

    request = ExportRequest(
        run, config, manifest, kind, path, checkpoint, standardized_input, probabilities, check
    )
    return write_export(request, announce)


def _data(run: RunDirectory, config: Config, data_dir: str | None, check: bool) -> tuple[Manifest, str]:
    """Return the run's data set and a line about it. Only a check needs images."""
    try:
        return data_of_run(run, config, data_dir)
    except InputError:
        recorded = None if check or data_dir is not None else recorded_manifest(run)
        if recorded is None:
            raise
    return (
        recorded,
        f"the data of {run.name}, {recorded.dataset}, aren't here; the export takes what it recorded of them",
    )
