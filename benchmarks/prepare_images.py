"""How fast are small pictures prepared, compared with reading them from their folder each time?

PNG files of 32 × 32, in a folder for each class and in the system's cache, are prepared by the command itself
with all that it does: every file is checked, decoded twice, hashed and written as a record. The peer,
`keras.utils.image_dataset_from_directory`, reads the same folder once, at its best: by large batches,
unshuffled, and without resizing (``image_size`` is that of the files).
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.common import at_least, make_parser, take_turns, work_folder
from benchmarks.processes import LABKIT, run
from benchmarks.report import Figure, Goal, Report, ratios

GOAL = Goal("at least", 5_000.0)
CLASSES = 10


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.add_argument("--pictures", type=at_least(40), default=50_000, help="PNG files of 32 x 32")
    options = parser.parse_args(arguments)
    report = Report("prepare_images", __doc__, vars(options))
    with work_folder() as folder:
        figures = measure(options, folder)
    report.finish(figures, options.output)


def write_pictures(root: Path, count: int) -> None:
    """Write smooth pictures with some noise, which compress about as CIFAR-10's do."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        small = generator.integers(0, 256, (6, 6, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(small).resize((32, 32), Image.Resampling.BICUBIC), np.int64)
        noisy = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        folder = root / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(folder / f"{number:06d}.png")


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Measure pictures per second of the command and of the peer, in turns."""
    write_pictures(folder / "pictures", options.pictures)
    turns = {
        "labkit data prepare": lambda: options.pictures / seconds_of_prepare(folder),
        "image_dataset_from_directory": lambda: options.pictures / seconds_of_keras(folder),
    }
    ours, theirs = take_turns(turns, options.repeats).values()
    return [
        Figure("labkit data prepare, whole command", "pictures/s", ours, GOAL),
        Figure(
            "labkit data prepare over one pass of image_dataset_from_directory", "x", ratios(ours, theirs)
        ),
        Figure("image_dataset_from_directory, one pass", "pictures/s", theirs),
    ]


def seconds_of_prepare(folder: Path) -> float:
    """Return how long the whole command takes, from its start to its end."""
    words = ["data", "prepare", "--images", str(folder / "pictures"), "--data-dir", str(folder / "data")]
    seconds = run([LABKIT, *words], folder / "prepare.log")
    shutil.rmtree(folder / "data")
    return seconds


def seconds_of_keras(folder: Path) -> float:
    """Return how long one pass over the folder takes in Keras, without the import of TensorFlow."""
    import keras

    started = time.perf_counter()
    batches = keras.utils.image_dataset_from_directory(
        folder / "pictures", batch_size=512, image_size=(32, 32), shuffle=False, verbose=False
    )
    for _ in batches:
        pass
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
