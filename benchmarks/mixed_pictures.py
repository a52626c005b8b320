"""Write the test images of a prepared data set as people's pictures, and three damaged files.

They go into a folder for each class. Of 25 images of a class, 18 are ordinary files in five formats. One each
is a grey JPEG, a grey BMP, a PNG with a palette, one with alpha and one of 16 bits, a JPEG in CMYK, and a
JPEG that lies on its side, with the orientation in its EXIF data.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from labkit.data.manifest import load_manifest
from labkit.data.shards import load_split
from labkit.home import data_home

PERIOD = 25
ORDINARY = (".jpg", ".png", ".bmp", ".gif", ".webp")
UNUSUAL = {
    15: ("P", ".png"),
    16: ("L", ".bmp"),
    20: ("L", ".jpg"),
    21: ("turned", ".jpg"),
    22: ("CMYK", ".jpeg"),
    23: ("I;16", ".png"),
    24: ("RGBA", ".png"),
}
ORIENTATION, TURNED = 0x0112, 6  # EXIF: shown right after a turn by 90° clockwise


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixed_pictures", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the folders of the classes are made")
    parser.add_argument("--dataset", default="cifar10", help="default: cifar10")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder of prepared data sets")
    options = parser.parse_args(arguments)
    manifest = load_manifest(options.data_dir or data_home(), options.dataset)
    images, labels = load_split(manifest, "test")
    options.folder.mkdir(parents=True)
    seen: Counter[str] = Counter()
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        name = manifest.classes[label]
        (options.folder / name).mkdir(exist_ok=True)
        save(Image.fromarray(pixels), options.folder / name / f"{number:05d}", seen[name] % PERIOD)
        seen[name] += 1
    first, second, third = (options.folder / name for name in manifest.classes[:3])
    whole = next(first.glob("*.jpg")).read_bytes()
    (first / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (second / "text.jpg").write_text("this is not a picture\n")
    (third / "empty.png").write_bytes(b"")
    print(f"{len(images):,} pictures and 3 damaged files in {options.folder}")


def save(image: Image.Image, path: Path, place: int) -> None:
    """Write an image in the format and mode of its ``place`` among 25."""
    mode, suffix = UNUSUAL.get(place, ("RGB", ORDINARY[place % len(ORDINARY)]))
    options: dict[str, Any] = {"quality": 95} if suffix in (".jpg", ".jpeg", ".webp") else {}
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode == "turned":
        options["exif"] = Image.Exif()
        options["exif"][ORIENTATION] = TURNED
        image = image.transpose(Image.Transpose.ROTATE_90)
    else:
        image = image.convert(mode)
    image.save(path.with_suffix(suffix), **options)


if __name__ == "__main__":
    main()
