"""The file formats of an export, and where it is written: the path is checked early, the file and its
description are written atomically. TensorFlow is imported only when a file is written.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError, require_extra
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.disk import check_writable

ONNX_OPSET = 18


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        name: the value of ``--format``.
        ending: of the file's name; for a folder, of its default name.
        write: called with a Keras model, the name of its output, and the path.
        is_folder: whether it is a folder.
        needs: modules that write and read it and that labkit's extra of the format's name installs.
    """

    name: str
    ending: str
    write: Callable[[Any, str, Path], None]
    is_folder: bool = False
    needs: tuple[str, ...] = ()


def check_installed(format: Format) -> None:
    """Raise InputError where a package is missing that the format needs."""
    require_extra(format.name, format.needs, f"--format {format.name}")


def _write_saved_model(model: Any, output: str, path: Path) -> None:
    import keras

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", *_signature(model, output))
    archive.write_out(str(path), verbose=False)


def _write_tflite(model: Any, output: str, path: Path) -> None:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(model, output, Path(folder))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        path.write_bytes(converter.convert())


def _write_onnx(model: Any, output: str, path: Path) -> None:
    import onnx
    import tensorflow as tf
    import tf2onnx

    function, signature = _signature(model, output)
    converted, _ = tf2onnx.convert.from_function(
        tf.function(function, input_signature=signature, autograph=False),
        signature,
        opset=ONNX_OPSET,
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    onnx.checker.check_model(converted, full_check=True)  # tf2onnx leaves unknown operations unconverted
    onnx.save(converted, path)


def _erfc(graph: Any, node: Any, name: str, _: Any) -> None:
    """Convert erfc(x), which tf2onnx doesn't support, to 1 - erf(x)."""
    import numpy as np

    shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    graph.remove_node(name)
    one = graph.make_const(f"{name}/one", np.array(1, np.float32))
    erf = graph.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype], name=f"{name}/erf")
    graph.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=node.output, shapes=[shape], dtypes=[dtype], name=name
    )


def _signature(model: Any, output: str) -> tuple[Callable[[Any], Any], list[Any]]:
    """Return ``model`` as a function with a named output, and its input signature for any batch size."""
    import tensorflow as tf

    def serve(images):
        return {output: model(images, training=False)}

    return serve, [tf.TensorSpec([None, *model.input_shape[1:]], tf.float32, name="images")]


FORMATS = {
    format.name: format
    for format in (
        Format("keras", ".keras", lambda model, output, path: model.save(path)),
        Format("saved_model", "-saved_model", _write_saved_model, is_folder=True),
        Format("tflite", ".tflite", _write_tflite),
        Format("onnx", ".onnx", _write_onnx, needs=("tf2onnx", "onnx", "onnxruntime")),
    )
}


PIXELS = "pixels from 0 to 255"  # the input's values in a description, unless they are standardized


@dataclass(frozen=True)
class ExportRequest:
    """The checked arguments of ``labkit.export.api.export``.

    ``config`` is the run's recorded configuration, ``manifest`` describes its data set, and ``path`` is the
    file or folder to write.
    """

    run: RunDirectory
    config: Config
    manifest: Manifest
    format: Format
    path: Path
    checkpoint: str
    standardized_input: bool
    probabilities: bool
    check: bool

    @property
    def output_name(self) -> str:
        """The name of the exported network's output."""
        if self.manifest.targets == "numbers":
            return "numbers"
        return "probabilities" if self.probabilities else "logits"


@dataclass(frozen=True)
class ExportResult:
    """The result of an export, with the content of the file's description.

    ``comparison`` is a ``labkit.export.write.Comparison``, or None if no check was requested. If the check
    failed, nothing was written to ``path``.
    """

    path: Path
    step: int
    description: dict[str, Any]
    comparison: Any = None

    @property
    def written(self) -> bool:
        return self.comparison is None or self.comparison.passed


def description_path(path: Path) -> Path:
    """Return the path of the description of the exported file ``path``: ``<name>.json`` beside it."""
    return path.with_name(f"{path.name}.json")


def check_output(path: Path, format: Format, *, overwrite: bool) -> None:
    """Check that an export of this format can be written to ``path``.

    Only a file or a folder with a SavedModel is ever overwritten.

    Raises:
        InputError: the path does not fit the format, can't be written to, or exists and must not be
            overwritten.
    """
    endings = {other.ending: other.name for other in FORMATS.values() if not other.is_folder}
    if path.suffix != format.ending and (path.suffix in endings or not format.is_folder):
        wanted = "a folder name" if format.is_folder else f"a name that ends with {format.ending}"
        hint = f", or --format {endings[path.suffix]}" if path.suffix in endings else ""
        raise InputError(f"--output is {str(path)!r}; allowed for --format {format.name}: {wanted}{hint}")
    if not path.name:
        raise InputError(f"--output is {str(path)!r}, which is not a file name; give another path")
    check_writable(path.parent, "--output")
    for file in (path, description_path(path)):
        if os.path.lexists(file) and not overwrite:
            raise InputError(f"--output {file} already exists; give another path, or add --overwrite")
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and not (format.is_folder and (path / "saved_model.pb").is_file()):
        raise InputError(f"--output {path} is a folder without a SavedModel; give another path")
    if os.path.lexists(path) and not is_folder and format.is_folder:
        raise InputError(f"--output {path} is a file, but a SavedModel is a folder; give another path")
    if description_path(path).is_dir():
        raise InputError(f"--output {description_path(path)} is a folder; give another path")


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Create an empty temporary folder next to ``path``; it is removed afterwards with its content.

    Raises:
        InputError: the folder can't be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # permissions allow it, but not the file system: /proc, a read-only mount
        raise InputError(f"--output {path} can't be written ({error.strerror}); give another path") from None
    with temporary as folder:
        yield Path(folder)


def publish(written: Path, path: Path, description: dict[str, Any]) -> None:
    """Move ``written``, from a folder of ``folder_beside``, to ``path``, and write its description.

    The old description is removed first, so that it is never found next to the new file.
    """
    description_path(path).unlink(missing_ok=True)
    if path.is_dir():  # a folder can't be replaced in one step
        previous = written.with_name(f"{written.name}.previous")
        os.rename(path, previous)
        try:
            os.rename(written, path)
        except OSError:
            os.rename(previous, path)
            raise
    else:
        os.replace(written, path)
    write_json_atomic(description_path(path), description)
