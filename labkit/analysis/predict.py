"""Ask a run's network about pictures and arrays: find them, fit them to the network, and predict."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.network import Classifier, images_at_once, restored_network
from labkit.config.config import recorded_config
from labkit.config.data_sets import Targets
from labkit.data.images.check import read_picture as content_of
from labkit.data.images.decode import MAX_BYTES, MAX_PIXELS, DamagedError
from labkit.data.images.pictures import fitted, read_picture
from labkit.data.images.walk import natural, shown, walk
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run, recorded_manifest
from labkit.errors import InputError, short
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import check_checkpoint

STANDARD_INPUT = "-"
Pixels = NDArray[np.uint8]
Read = Callable[[], bytes]


@dataclass(frozen=True, eq=False)
class PredictedImages:
    """What a network says of images.

    ``names``: of each image, the path of its file or ``image 0``. ``probabilities``: float64 [n, classes];
    where labels are numbers, these numbers in their unit. ``classes``: their names. ``targets``: as of
    ``Manifest.targets``. ``step``: of the checkpoint. ``skipped``: why files were left out, by their paths.

    Raises InputError where the network gave NaN or infinite numbers.
    """

    names: tuple[str, ...]
    probabilities: NDArray[np.float64]
    classes: tuple[str, ...]
    targets: Targets
    step: int
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = np.flatnonzero(~np.isfinite(self.probabilities).all(axis=1))
        if len(wrong):  # of which no class is the most probable
            raise InputError(
                f"the network of step {self.step} gives NaN or infinite numbers for {len(wrong):,} of "
                f"{counted(len(self), 'image')}; ask an earlier checkpoint, or train again with a lower rate"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<predictions of {counted(len(self), 'image')} by the checkpoint of step {self.step}>"

    @property
    def predicted(self) -> NDArray[Any]:
        """The most probable class, int64 [n]; those over 0.5, bool [n, classes]; or numbers."""
        if self.targets == "numbers":
            return self.probabilities
        return self.probabilities > 0.5 if self.targets == "classes" else self.probabilities.argmax(axis=1)

    def top(self, row: int, count: int) -> list[tuple[str, float]]:
        """Return the most probable classes of an image with their probabilities, the highest first."""
        shares = self.probabilities[row]
        order = np.argsort(-shares, kind="stable")[:count]
        return [(self.classes[number], float(shares[number])) for number in order]

    def row(self, number: int, top: int = 1) -> dict[str, Any]:
        """Return what is predicted for an image, ready for JSON.

        ``numbers`` by their names; or ``class`` and ``probability``, with several labels ``classes``; and
        where ``top`` is above 1, or with several labels, ``top``: the most probable classes.
        """
        shares = self.probabilities[number].tolist()
        if self.targets == "numbers":
            return {"numbers": dict(zip(self.classes, shares, strict=True))}
        best = [{"class": name, "probability": share} for name, share in self.top(number, top)]
        if self.targets == "classes":
            given = zip(self.classes, self.predicted[number], strict=True)
            return {"classes": [name for name, has in given if has], "top": best}
        return best[0] | ({"top": best} if top > 1 else {})


def predict(
    run: RunDirectory,
    images: Any,
    *,
    checkpoint: str = "best",
    data_dir: str | None = None,
    skip_damaged: bool = False,
    standard_input: Read | None = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> PredictedImages:
    """Predict the classes, or numbers, of images. Memory stays bounded, however many there are.

    Args:
        run: the run; its data set need not be here.
        images: uint8 [n, height, width, channels] or [height, width, channels], channels 1 or 3, or
            without channels, [n, height, width] or [height, width]; or paths of files and folders, and
            patterns such as ``new/*.png``.
        checkpoint: ``best``, ``last`` or a step.
        data_dir: folder of prepared data sets; None: the run's.
        skip_damaged: leaves out files that can't be read instead of refusing all.
        standard_input: reads the picture of the path ``-``.
        progress: takes the number of images that are done, and of all.

    Raises InputError for images of another kind, paths without pictures, a file that can't be read, and a run
    or a checkpoint that is missing or damaged.
    """

    def open_network() -> Asked:
        network = network_to_ask(run, checkpoint, data_dir)
        return Asked(network.manifest, asking(network), network.step)

    return ask_about(images, open_network, skip_damaged, standard_input, progress)


@dataclass(frozen=True, eq=False)
class Asked:
    """A network that is asked. ``manifest``: how pictures become its images, and what its outputs are of.

    ``ask``: uint8 [n, height, width, channels] to probabilities or numbers, float64 [n, classes].
    ``step``: of its checkpoint.
    """

    manifest: Manifest
    ask: Callable[[Pixels], NDArray[np.float64]]
    step: int


def ask_about(
    images: Any,
    open_network: Callable[[], Asked],
    skip_damaged: bool = False,
    standard_input: Read | None = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> PredictedImages:
    """Predict with any network, which is opened once the images are found. The rest is as of ``predict``."""
    sources = _arrays(images) if isinstance(images, np.ndarray) else _files(images, standard_input)
    network = open_network()
    manifest = network.manifest
    names: list[str] = []
    parts: list[NDArray[np.float64]] = []
    skipped: dict[str, str] = {}
    for batch in _read(sources, manifest):
        damaged = {name: str(image) for name, image in batch if isinstance(image, InputError)}
        if damaged and not skip_damaged:
            name, reason = next(iter(damaged.items()))
            raise InputError(f"{shown(name)} can't be used: {reason} Or leave it out with --skip-damaged")
        skipped |= damaged
        good = [(name, image) for name, image in batch if not isinstance(image, InputError)]
        names += [name for name, _ in good]
        if good:
            parts.append(network.ask(np.stack([image for _, image in good])))
        progress(len(names) + len(skipped), len(sources))
    if not names:
        raise InputError(f"none of {counted(len(sources), 'picture')} can be read; save them again")
    return PredictedImages(
        tuple(names), np.concatenate(parts), manifest.classes, manifest.targets, network.step, skipped
    )


def network_to_ask(run: RunDirectory, checkpoint: str, data_dir: str | None = None) -> Classifier:
    """Return the network of a checkpoint; without the data set, by what the run recorded of it.

    Arguments and errors are those of ``predict``.
    """
    config = recorded_config(run)
    manifest = recorded_manifest(run) or data_of_run(run, config, data_dir)[0]
    check_checkpoint(run.checkpoints_path, checkpoint)
    return restored_network(run, config, manifest, checkpoint)[0]


# ---- what to ask about ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """An image: its name, and what gives its pixels for the network of a data set. Raises InputError."""

    name: str
    image: Callable[[Manifest], Pixels]


def _arrays(images: NDArray[Any]) -> list[_Source]:
    grey = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] not in (1, 3))
    rows = images[..., None] if grey else images
    rows = rows[None] if rows.ndim == 3 else rows
    if images.dtype != np.uint8 or rows.ndim != 4 or rows.shape[-1] not in (1, 3):
        raise InputError(
            f"images are {images.dtype} {list(images.shape)}; allowed: uint8 [n, height, width, channels] or "
            "[height, width, channels], with 1 or 3 channels and values from 0 to 255, or grey ones without "
            "channels"
        )
    if not rows.size:
        raise InputError(f"images have the shape {list(images.shape)}; give at least one image")

    def source(number: int) -> _Source:
        return _Source(f"image {number}", lambda manifest: _fitting(rows[number], manifest))

    return [source(number) for number in range(len(rows))]


def _fitting(pixels: Pixels, manifest: Manifest) -> Pixels:
    if pixels.shape == manifest.image_shape:
        return pixels
    return fitted(pixels, manifest.image_shape, manifest.source.get("resize"))


def _files(paths: Any, standard_input: Read | None) -> list[_Source]:
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not all(isinstance(path, str | os.PathLike) for path in given):
        raise InputError(f"images are {short(paths)}; allowed: a uint8 array, or paths of files and folders")
    found: dict[str, None] = {}
    for path in map(os.fspath, given):
        found |= dict.fromkeys([path] if path == STANDARD_INPUT and standard_input else _below(path))
    if not found:
        raise InputError("no pictures were named; give files, folders or a pattern such as 'new/*.png'")

    def source(path: str) -> _Source:
        read = standard_input if path == STANDARD_INPUT and standard_input else partial(content_of, path)
        return _Source(path, lambda manifest: fitted_file(_content(read), manifest))

    return [source(path) for path in found]


def _below(path: str) -> list[str]:
    """Return the file, the pictures in the folder, or the files of the pattern. Raises InputError."""
    whole = os.path.expanduser(path)
    if os.path.isdir(whole):
        inside = sorted(walk(Path(whole)).below(""), key=natural)
        if not inside:
            raise InputError(f"{shown(path)} has no pictures; give a folder that has some, or files")
        return [os.path.join(whole, name) for name in inside]
    if os.path.exists(whole):
        return [whole]
    if glob.has_magic(whole):
        names = sorted(glob.glob(whole, recursive=True), key=natural)
        if files := [name for name in names if os.path.isfile(name)]:
            return files
        raise InputError(f"no file fits the pattern {shown(path)}; look at the names with: ls")
    raise InputError(f"{shown(path)} does not exist; give files, folders or a pattern such as 'new/*.png'")


def _content(read: Read) -> bytes:
    try:
        return read()
    except (OSError, DamagedError) as error:
        raise InputError(f"It can't be read ({getattr(error, 'strerror', error)}).") from None


def fitted_file(data: bytes, manifest: Manifest, max_bytes: int = MAX_BYTES) -> Pixels:
    """Return the image that a network takes of a picture file. Raises InputError as ``read_picture``."""
    resize, white = manifest.source.get("resize"), manifest.source.get("white")
    return read_picture(data, manifest.image_shape, resize, white, max_bytes, MAX_PIXELS).image


# ---- asking --------------------------------------------------------------------------------------------


def _read(sources: list[_Source], manifest: Manifest) -> Iterator[list[tuple[str, Pixels | InputError]]]:
    """Yield the images in batches; the next one is read while the network computes."""

    def image(source: _Source) -> Pixels | InputError:
        try:
            return source.image(manifest)
        except InputError as error:
            return error

    size = images_at_once(manifest.image_shape)
    batches = [sources[start : start + size] for start in range(0, len(sources), size)]
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(image, source) for source in batches[0]]
        for number, batch in enumerate(batches):
            after = batches[number + 1] if number + 1 < len(batches) else []
            following = [pool.submit(image, source) for source in after]
            yield [(source.name, one.result()) for source, one in zip(batch, waiting, strict=True)]
            waiting = following


def asking(network: Classifier) -> Callable[[Pixels], NDArray[np.float64]]:
    """Return what gives probabilities, or numbers, of images [n, …]; compiled as for an evaluation."""
    import tensorflow as tf

    from labkit.training.evaluate import make_predict_step

    step = make_predict_step(tf.distribute.get_strategy(), network.model)

    def asked(images: Pixels) -> NDArray[np.float64]:
        return np.asarray(network.loss.probabilities(step(network.inputs(images)).numpy()), np.float64)

    return asked
