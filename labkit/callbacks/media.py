"""Writes what callbacks keep of single steps: images, histograms and texts."""

import io
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.errors import InputError, short
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing
from labkit.run_directory.media import INDEX
from labkit.run_directory.metrics import MetricsWriter

PARTS = 50  # of a histogram
LARGEST = 8e307  # in it, so that its width is a float64
MOST_TEXT = 2**16  # bytes
_NAME = re.compile(r"[A-Za-z][\w./ -]{0,99}", re.ASCII)


class MediaWriter:
    """Writes into the folder ``media/`` of a run.

    Args:
        run: the run.
        summarize: takes a TensorBoard summary and its step.

    Every method takes a name, of letters, digits, spaces, ``_``, ``.``, ``-`` and ``/``, and the step. They
    raise InputError for another name, and for what they can't keep.
    """

    def __init__(self, run: RunDirectory, summarize: Callable[[Any, int], None]) -> None:
        run.media_path.mkdir(exist_ok=True)
        self._folder, self._summarize = run.media_path, summarize
        self._index = MetricsWriter(run.media_path / INDEX)

    def image(self, name: str, step: int, image: Any) -> None:
        """Keep an image: uint8, or float from 0 to 1, [height, width] or [height, width, 1 or 3]."""
        from PIL import Image

        pixels = np.asarray(image)
        if pixels.dtype.kind == "f" and pixels.size and 0 <= pixels.min() <= pixels.max() <= 1:
            pixels = np.round(pixels * 255).astype(np.uint8)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
        if pixels.dtype != np.uint8 or not fits or not pixels.size:
            raise InputError(
                f"the image {name!r} is {pixels.dtype} {list(pixels.shape)}; allowed: uint8, or "
                "floats from 0 to 1, [height, width] or [height, width, 3]"
            )
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        self._png(name, step, buffer.getvalue(), *pixels.shape[:2])

    def figure(self, name: str, step: int, figure: Any) -> None:
        """Keep a figure of Matplotlib."""
        if not callable(getattr(figure, "savefig", None)):
            raise InputError(f"the figure {name!r} is {short(figure)}; allowed: a figure of Matplotlib")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        width, height = figure.canvas.get_width_height()
        self._png(name, step, buffer.getvalue(), height, width)

    def histogram(self, name: str, step: int, values: Any) -> None:
        """Keep a histogram of the finite values of an array, and how many aren't finite."""
        try:
            flat = np.asarray(values, np.float64).ravel()
        except (TypeError, ValueError):
            raise InputError(f"the histogram {name!r} is of {short(values)}; allowed: numbers") from None
        finite = np.clip(flat[np.isfinite(flat)], -LARGEST, LARGEST)
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        room = 2 * PARTS * np.spacing(max(-low, high))
        if high - low < room:  # values so near that float64 has no parts between them
            low, high = low - max(room, 0.5), high + max(room, 0.5)
        counts, edges = np.histogram(finite, PARTS, (low, high))
        row = {
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "not_finite_values": len(flat) - len(finite),
        }
        self._row(name, step, "histogram", row)
        from tensorboard.plugins.histogram.metadata import create_summary_metadata

        self._tensor(name, step, np.stack([edges[:-1], edges[1:], counts], axis=1), create_summary_metadata)

    def text(self, name: str, step: int, text: str) -> None:
        """Keep a text of up to 64 KiB."""
        if not isinstance(text, str) or len(text.encode("utf-8", "replace")) > MOST_TEXT:
            raise InputError(
                f"the text {name!r} is {short(text)[:60]}; allowed: a text of up to {MOST_TEXT >> 10} KiB"
            )
        self._row(name, step, "text", {"text": text})
        from tensorboard.plugins.text.metadata import create_summary_metadata

        self._tensor(name, step, np.array([text.encode("utf-8", "replace")], object), create_summary_metadata)

    def _png(self, name: str, step: int, content: bytes, height: int, width: int) -> None:
        file = f"{_checked(name).replace('/', '+')}-{step:08d}.png"  # a name has no +
        with replacing(self._folder / file) as temporary:
            temporary.write_bytes(content)
        self._row(name, step, "image", {"file": file})
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = Summary.Image(encoded_image_string=content, height=height, width=width, colorspace=3)
        self._summarize(Summary(value=[Summary.Value(tag=f"media/{name}", image=shown)]), step)

    def _tensor(self, name: str, step: int, values: Any, metadata: Callable[..., Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        summary = Summary()
        described = metadata(display_name=None, description=None)
        summary.value.add(tag=f"media/{name}", metadata=described, tensor=make_tensor_proto(values))
        self._summarize(summary, step)

    def _row(self, name: str, step: int, kind: str, content: dict[str, Any]) -> None:
        place = {"step": step, "wall_time": time.time(), "name": _checked(name), "kind": kind}
        self._index.append([place | content])


def _checked(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"a name is {short(name)}; allowed: up to 100 letters, digits, spaces and _ . - /, a letter first"
        )
    return name
