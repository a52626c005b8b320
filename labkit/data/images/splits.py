"""Choose the size of the images, and which pictures are for training, validation and testing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.data.hashes import named_key
from labkit.data.images.check import Fact
from labkit.data.images.layouts import SPLITS, Listing
from labkit.data.images.names import shown
from labkit.data.request import SMALLEST_IMAGE
from labkit.data.subset import are_mixed, strata, stratified_rows, with_train_examples
from labkit.errors import InputError
from labkit.plurals import counted

LARGEST_DEFAULT = 64  # pixels; above it images are stored as JPEG, and training takes minutes to hours
_DIVISOR = 10  # a tenth is held out


def choose_size(facts: Sequence[Fact]) -> tuple[int, str]:
    """Return the side that suits the pictures, and a line that says why.

    That of all pictures if they are equal squares of up to 64 pixels; otherwise 64, or the median of the
    shorter sides where that is less.

    Args:
        facts: of pictures that can be used.
    """
    sizes = Counter((fact.width, fact.height) for fact in facts)
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) == 1 and width == height and SMALLEST_IMAGE <= width <= LARGEST_DEFAULT:
        return width, f"image size {width}: that of all pictures"
    shorter = int(np.median([min(fact.width, fact.height) for fact in facts]))
    size = min(max(shorter, SMALLEST_IMAGE), LARGEST_DEFAULT)
    if len(sizes) == 1:
        found = f"all pictures are {width} × {height}"
    else:
        ordered = sorted(sizes, key=lambda pair: (pair[0] * pair[1], *pair))  # some lie, some stand
        low, high = (f"{width} × {height}" for width, height in (ordered[0], ordered[-1]))
        found = f"the pictures have {len(sizes):,} sizes, from {low} to {high}"
    return size, f"image size {size}: {found}; --image-size chooses another"


@dataclass(frozen=True)
class Parts:
    """The rows of each split, in the order in which they are written, and what is to be said of it.

    ``held_out``: the number of validation images.
    """

    rows: dict[str, np.ndarray]
    held_out: int
    lines: tuple[str, ...]


def choose_splits(
    listing: Listing,
    usable: np.ndarray,
    *,
    validation_size: int | None,
    train_examples: int | None,
    seed: int,
) -> Parts:
    """Choose the rows of each split; a split that the source doesn't name is held out of the training data.

    A tenth becomes the test split, and a tenth of the rest the validation split, with each class (or each set
    of labels) in proportion. The order within a split is random, so that a stream doesn't see class by class;
    the rows of a table in which the classes are mixed stay as they are.

    Args:
        listing: the pictures.
        usable: bool [n], false for what is left out.
        validation_size: the number of validation images; None for a tenth.
        train_examples: how many training images to keep; None for all.
        seed: decides which are held out, and the order.

    Raises:
        InputError: a size that isn't possible, or a class has no picture to train on.
    """
    named = np.array(listing.splits)
    rows = {name: np.flatnonzero(usable & (named == name)) for name in SPLITS}
    lines = []
    if not named.any():
        rows["train"] = np.flatnonzero(usable)
    total = len(rows["train"])
    given = [name for name in ("validation", "test") if len(rows[name])]
    if "validation" in given and validation_size is not None:
        raise InputError(
            f"--validation-size is {validation_size}, but the pictures for validation are named; leave it out"
        )
    sizes = {"test": max(1, total // _DIVISOR)} if "test" not in given else {}
    left = total - sum(sizes.values())
    if "validation" not in given:
        sizes["validation"] = max(1, left // _DIVISOR) if validation_size is None else validation_size
        left -= sizes["validation"]
    if left < 1 and validation_size and left + validation_size > 0:
        raise InputError(
            f"validation size {validation_size} leaves nothing to train on; give less than "
            f"{left + validation_size}"
        )
    if left < 1:
        raise InputError(
            f"{counted(total, 'picture')} to train on, of which some are held out: too few; add pictures to "
            f"{shown(listing.location)}"
        )
    for name, size in sizes.items():
        labels = listing.labels[rows["train"]]
        chosen = stratified_rows(*strata(labels, len(listing.classes)), size, named_key(seed, name[:8]))
        rows[name], rows["train"] = rows["train"][chosen], rows["train"][~chosen]
        if size and named.any():
            lines.append(f"no {name} pictures are named: {size:,} of the training pictures are held out")
    if train_examples is not None:
        train = rows["train"]
        rows["train"], _ = with_train_examples(
            train, listing.labels[train], len(listing.classes), train_examples, seed
        )
    missing = np.flatnonzero(listing.counts(rows["train"]) == 0).tolist()
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(
            f"class {shown(listing.classes[missing[0]])}{more}: no pictures left to train on; add pictures, "
            "leave the class out, or name the splits yourself"
        )
    written = {
        name: part
        if listing.layout == "csv" and are_mixed(listing.labels[part])
        else shuffled(part, named_key(seed, name[:8]))
        for name, part in rows.items()
        if len(part)
    }
    return Parts(written, len(rows["validation"]), tuple(lines))


def shuffled(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows in a random order, from raw numbers as in ``stratified_rows``."""
    bits = np.random.PCG64(np.random.SeedSequence((seed, 0x6F72646572)))  # "order" in ASCII
    return rows[np.argsort(bits.random_raw(len(rows)), kind="stable")]
