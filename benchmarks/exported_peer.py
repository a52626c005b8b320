"""OpenVINO's and ONNX Runtime's sides of inference.py: they predict with labkit's network, exported to ONNX.

Predicts some batches for each line on stdin and prints the speed as a line of JSON. A batch is computed whole
by all cores, or as labkit's is, in two halves at a time.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.turns import network_on_cpu, read_options, serve_turns, turn_options
from labkit.data.manifest import Manifest

Predict = Callable[[np.ndarray], np.ndarray]
# Of the largest logit: how far logits may be from labkit's in float32. A bfloat16 number has 8 bits.
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 2.0**-5}


def write_network(options: argparse.Namespace, manifest: Manifest, arrays: Path) -> None:
    """Write labkit's network as ``labkit export --format onnx`` does, and its logits of the first batch.

    Args:
        options: have the depth of the ResNet and the size of a batch.
        manifest: the data set.
        arrays: of the test images, by ``common.write_arrays``. The written files have its name with another
            ending: ``.onnx``, for standardized images, and ``.npy``.
    """
    from labkit.analysis.network import Classifier
    from labkit.export.output import FORMATS
    from labkit.export.standard import standard_model

    told = argparse.Namespace(**turn_options(options, manifest, precision="float32"))
    own = network_on_cpu(told, {"num_layers": options.num_layers})
    classifier = Classifier(own.model, manifest, own.loss, 0, own.network_input)
    model = standard_model(own.config.model, classifier, standardized_input=True, probabilities=False)
    FORMATS["onnx"].write(model, "logits", arrays.with_suffix(".onnx"))
    first = standardized(arrays)[: options.batch_size]
    np.save(arrays.with_suffix(".npy"), own.predict_step(first).numpy())


def standardized(arrays: Path) -> np.ndarray:
    """Return the images of a file by ``common.write_arrays``, float32 [n, height, width, channels]."""
    with np.load(arrays) as stored:
        mean, std = np.float32(stored["mean"]), np.float32(stored["std"])
        return (np.float32(stored["images"]) / 255 - mean) / std


def openvino(options: argparse.Namespace, cores: int) -> Predict:
    """Return what predicts a batch with OpenVINO, its parts at the same time."""
    import openvino

    core = openvino.Core()
    # convert_model would report its use to Intel.
    model = core.read_model(Path(options.arrays).with_suffix(".onnx"))
    model.reshape([options.batch_size // options.parts, *model.input().partial_shape[1:]])
    precision = {"float32": "f32", "mixed_bfloat16": "bf16"}[options.precision]
    threads = {"NUM_STREAMS": options.parts, "INFERENCE_NUM_THREADS": cores}
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision, **threads})
    requests = [compiled.create_infer_request() for _ in range(options.parts)]

    def predict(images: np.ndarray) -> np.ndarray:
        for request, part in zip(requests, np.split(images, options.parts), strict=True):
            request.start_async([part], share_inputs=True)
        for request in requests:
            request.wait()
        return np.concatenate([request.get_output_tensor().data for request in requests])

    return predict


def onnxruntime(options: argparse.Namespace, cores: int) -> Predict:
    """Return what predicts a batch with ONNX Runtime in float32, its parts at the same time."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = max(1, cores // options.parts)
    network = Path(options.arrays).with_suffix(".onnx")
    session = onnxruntime.InferenceSession(network, settings, providers=["CPUExecutionProvider"])
    callers = ThreadPoolExecutor(options.parts)

    def run(images: np.ndarray) -> np.ndarray:
        return session.run(None, {"images": images})[0]

    return lambda images: np.concatenate(list(callers.map(run, np.split(images, options.parts))))


RUNTIMES = {"openvino": openvino, "onnxruntime": onnxruntime}


def check_logits(found: np.ndarray, options: argparse.Namespace) -> None:
    """Raise RuntimeError where the logits of the first batch differ from labkit's by more than rounding."""
    own = np.load(Path(options.arrays).with_suffix(".npy"))
    difference, allowed = np.abs(found - own).max() / np.abs(own).max(), TOLERANCES[options.precision]
    if not difference <= allowed:
        known = f"{difference:.1e} of the largest logit; allowed: {allowed:.1e}"
        raise RuntimeError(f"{options.form} differs from labkit by {known}")


def main() -> None:
    options = read_options()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    predict = RUNTIMES[options.form](options, cores)
    images = standardized(Path(options.arrays))
    count = len(images) // options.batch_size
    batches = np.split(images[: count * options.batch_size], count)
    check_logits(predict(batches[0]), options)
    source = itertools.cycle(batches)

    def turn() -> dict[str, float]:
        started = time.perf_counter()
        for _ in range(options.steps):
            predict(next(source))
        return {"images_per_second": options.steps * options.batch_size / (time.perf_counter() - started)}

    serve_turns(turn)


if __name__ == "__main__":
    main()
