"""Predict with an exported file: a program of its own, in which labkit can't be imported.

``python -P predict.py FORMAT FILE IMAGES.npy OUTPUTS.npy``: each function reads a kind of file as people who
have nothing of labkit would, and returns a function from a batch of images to outputs [batch, classes].
"""

import os
import sys
import warnings

BATCH_SIZE = 250


def keras(path):
    """A ``.keras`` file, by Keras alone."""
    from keras.saving import load_model

    model = load_model(path, compile=False)
    return lambda images: model(images, training=False)


def saved_model(path):
    """A SavedModel, by TensorFlow alone, through its signature for serving."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]

    def predict(images):
        (outputs,) = signature(images=tf.cast(images, tf.float32)).values()
        return outputs

    predict.keeps = loaded  # a signature alone doesn't hold the weights
    return predict


def tflite(path):
    """A TFLite file, by the interpreter that comes with TensorFlow."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
        interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
    (images_at,), (outputs_at,) = interpreter.get_input_details(), interpreter.get_output_details()

    def predict(images):
        interpreter.resize_tensor_input(images_at["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(images_at["index"], images.astype("float32"))
        interpreter.invoke()
        return interpreter.get_tensor(outputs_at["index"])

    return predict


def onnx(path):
    """An ONNX file, by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.astype("float32")})[0]


READERS = {"keras": keras, "saved_model": saved_model, "tflite": tflite, "onnx": onnx}


def without_labkit() -> None:
    """See to it that labkit can't be imported in this process, and that nothing runs on a GPU."""
    sys.modules["labkit"] = None  # type: ignore[assignment]  # what the import system takes for "halted"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(kind, path, images_path, outputs_path) -> None:
    """Write the outputs for all images, float32 [n, classes]."""
    without_labkit()
    import numpy as np

    images = np.load(images_path, mmap_mode="r")
    predict = READERS[kind](path)
    starts = range(0, len(images), BATCH_SIZE)
    outputs = [np.asarray(predict(np.array(images[start : start + BATCH_SIZE]))) for start in starts]
    np.save(outputs_path, np.concatenate(outputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
