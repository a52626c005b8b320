"""The file formats of an export. TensorFlow is imported only when a file is written."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import require_extra

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


def _write_keras(model: Any, output: str, path: Path) -> None:
    model.save(path)


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
        Format("keras", ".keras", _write_keras),
        Format("saved_model", "-saved_model", _write_saved_model, is_folder=True),
        Format("tflite", ".tflite", _write_tflite),
        Format("onnx", ".onnx", _write_onnx, needs=("tf2onnx", "onnx", "onnxruntime")),
    )
}
