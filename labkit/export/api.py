"""Export a run: what the command line and Python call. TensorFlow is imported when there is work for it."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from labkit.config.recorded import recorded_config
from labkit.data.manifest import load_manifest
from labkit.errors import InputError
from labkit.export.formats import FORMATS, check_installed
from labkit.export.output import check_output
from labkit.export.request import ExportRequest, ExportResult
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory
from labkit.training.plan import data_directory

__all__ = ["export"]


def export(
    job_dir: str,
    *,
    checkpoint: str = "best",
    format: str = "keras",
    output: str | None = None,
    standardized_input: bool = False,
    probabilities: bool = False,
    check: bool = False,
    data_dir: str | None = None,
    overwrite: bool = False,
    announce: Callable[[str], None] = lambda line: None,
) -> ExportResult:
    """Write a checkpoint of a run as a file that needs no labkit, and ``<file>.json``, which describes it.

    The network is exported in float32, channels last, for any number of images.

    Args:
        job_dir: the run directory.
        checkpoint: ``best`` (on validation; the newest where there was none), ``last``, or a step.
        format: ``keras``, ``saved_model``, ``tflite`` or ``onnx``.
        output: the file, for ``saved_model`` a folder; None: named after the run, in the current folder.
        standardized_input: whether images come standardized; else they are pixels from 0 to 255, and the
            network standardizes them itself.
        probabilities: whether it returns probabilities instead of logits.
        check: compare the file with the run's own network on every test image, before it is put in place.
        data_dir: where the data set is; None: where the run was trained with it.
        overwrite: replace the output that is there.
        announce: takes lines for people about what is being done.

    Raises InputError where the run, the checkpoint or the data set isn't there, a package is missing, or the
    output can't be written.
    """
    run = RunDirectory(job_dir)
    config = recorded_config(run)
    if format not in FORMATS:
        raise InputError(f"--format is {format!r}; allowed: {', '.join(FORMATS)}")
    kind = FORMATS[format]
    path = Path(os.path.abspath(Path(output or run.name + kind.ending).expanduser()))
    check_output(path, kind, overwrite=overwrite)
    check_installed(kind)
    place = data_directory(config.replace({"data_dir": data_dir} if data_dir else {}))
    manifest = load_manifest(place, config.data.dataset)
    if check and not manifest.count("test"):
        raise InputError(f"--check needs test images; {manifest.dataset} in {place} has none")

    _import_without_gpus()
    from labkit.export.making import make

    request = ExportRequest(
        run, config, manifest, kind, path, checkpoint, standardized_input, probabilities, check
    )
    return make(request, announce)


def _import_without_gpus() -> None:
    """Exporting needs no GPU, and its rounding would be another one."""
    import_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # where TensorFlow runs already, it has them
        tf.config.set_visible_devices([], "GPU")
