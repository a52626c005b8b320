"""Predict with an exported file, as a standalone program that can't import labkit.

Usage: ``python -P predict.py FORMAT FILE IMAGES.npy OUTPUTS.npy``. Each reader function shows how to read one
format without labkit. It returns a function that maps a batch of images to outputs [batch, num_classes].
"""

import os
import sys
import warnings

BATCH_SIZE = 250


def keras(path):
    """Read a ``.keras`` file with Keras."""
    from keras.saving import load_model

    model = load_model(path, compile=False)
    return lambda images: model(images, training=False)


def saved_model(path):
    """Read a SavedModel with TensorFlow, using its serving signature."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]

    def predict(images):
        (outputs,) = signature(images=tf.cast(images, tf.float32)).values()
        return outputs

    predict.model = loaded  # keeps the weights alive; a signature does not
    return predict


def tflite(path):
    """Read a TFLite file with TensorFlow's interpreter."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
        interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
    (input_details,), (output_details,) = interpreter.get_input_details(), interpreter.get_output_details()

    def predict(images):
        interpreter.resize_tensor_input(input_details["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(input_details["index"], images.astype("float32"))
        interpreter.invoke()
        return interpreter.get_tensor(output_details["index"])

    return predict


def onnx(path):
    """Read an ONNX file with ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.astype("float32")})[0]


READERS = {"keras": keras, "saved_model": saved_model, "tflite": tflite, "onnx": onnx}


def without_labkit() -> None:
    """Make importing labkit fail in this process, and hide the GPUs."""
    sys.modules["labkit"] = None  # type: ignore[assignment]  # None makes the import raise ImportError
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(kind, path, images_path, outputs_path) -> None:
    """Write the outputs for all images to ``outputs_path``, float32 [n, num_classes]."""
    without_labkit()
    import numpy as np

    images = np.load(images_path, mmap_mode="r")
    predict = READERS[kind](path)
    starts = range(0, len(images), BATCH_SIZE)
    outputs = [np.asarray(predict(np.array(images[start : start + BATCH_SIZE]))) for start in starts]
    np.save(outputs_path, np.concatenate(outputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
