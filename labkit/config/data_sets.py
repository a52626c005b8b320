"""Names of data sets: labkit's own, those that people give to theirs, and folds of both."""

import re
import shlex
import unicodedata
from collections.abc import Sequence
from typing import Literal

from labkit.errors import InputError, nearest

AUTO = "auto"
GENERATED = ("shapes", "shapes_multilabel", "shapes_size")
PUBLISHED = ("cifar10", "cifar100", "cifar100_coarse", "mnist", "fashion_mnist", "svhn")
BUILT_IN = (PUBLISHED[0], *GENERATED, *PUBLISHED[1:])
# What the labels of labkit's own are, for use before a data set is prepared; later, read its manifest.
Targets = Literal["class", "classes", "numbers"]
TARGETS: dict[str, Targets] = {"shapes_multilabel": "classes", "shapes_size": "numbers"}
IMAGES, NPZ, TFRECORDS = OWN_FILES = ("images", "npz", "tfrecords")  # kinds of sources, named as their flags
EXAMPLES = "examples"  # the kind of a source that is given in Python
CORRECTED = "corrected"  # the kind of a source that is another data set, with what people marked in it
FOLD = "fold"  # the kind of a source that is another data set, a part of which validates
MARKS_NAME = "marks.json"  # in the folder of a corrected data set: the marks that it was made with
_RESERVED = (AUTO, "downloads", *BUILT_IN)  # downloads is a folder beside the data sets
_NAME = re.compile(r"[^\W_][\w.-]{0,63}")  # a folder of that name is made
_FOLD_NAME = re.compile(r"(.+)-fold-([1-9]\d?)-of-([1-9]\d?)")
MOST_FOLDS = 50
_MAX_NAME_BYTES = 200  # file systems take 255
_LISTED = 12  # names in a sentence; labkit data list shows all


def is_own(name: str) -> bool:
    """Return whether a data set is one that somebody made of pictures or arrays of their own."""
    return name not in _RESERVED


def checked_name(name: str, flag: str = "--name") -> str:
    """Return the name of somebody's own data set, with each accented letter as one character.

    Raises:
        InputError: it is not a name of letters (of any script), digits, ``.``, ``_`` and ``-``, or it is
            taken.
    """
    composed = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(composed) or len(composed.encode()) > _MAX_NAME_BYTES:
        raise InputError(
            f"{flag} is {name!r}; allowed: up to 64 letters, digits, dots, dashes and underscores, a letter "
            f"or digit first, such as {proposed_name(name)}"
        )
    if composed.casefold() in _RESERVED:
        raise InputError(
            f"{flag} is {name!r}, which labkit uses itself; give another name, such as {proposed_name(name)}"
        )
    return composed


def proposed_name(name: str) -> str:
    """Return an allowed name that is as near as possible to one that isn't: ``my-cats`` for ``my cats``."""
    composed = unicodedata.normalize("NFC", name)
    cleaned = re.sub(r"-*[^\w.-]+-*", "-", composed).strip("-_.")[:64]
    while len(cleaned.encode()) > _MAX_NAME_BYTES:
        cleaned = cleaned[:-1]
    if not _NAME.fullmatch(cleaned):
        return "my-images"
    return f"my-{cleaned}" if cleaned.casefold() in _RESERVED else cleaned


def checked_choice(name: str) -> str:
    """Return the name of a data set to train on: ``auto``, one of labkit's own, or somebody's own.

    Raises:
        InputError: no data set can have this name.
    """
    if name in (AUTO, *BUILT_IN):
        return name
    if name.casefold() in (AUTO, *BUILT_IN):
        raise InputError(f"--dataset is {name!r}; did you mean {name.casefold()!r}?")
    return checked_name(name, "--dataset")


def checked_fold(text: str) -> str:
    """Return a fold such as ``2/5``: its number, from 1, and how many there are. Raises InputError."""
    if fold_of_name(fold_name("any", text)) is None:
        raise InputError(
            f"--fold is {text!r}; allowed: the number of the fold, from 1, and how many there are, 2 to "
            f"{MOST_FOLDS}, such as 2/5"
        )
    return text


def checked_folds(count: int) -> None:
    """Raise InputError for a number of folds that data can't be parted into."""
    if not 2 <= count <= MOST_FOLDS:
        raise InputError(f"--folds is {count}; allowed: 2 to {MOST_FOLDS}")


def fold_name(dataset: str, fold: str) -> str:
    """Return the name of the data set that is a fold, such as ``2/5``, of another one."""
    return f"{dataset}-fold-{fold.replace('/', '-of-')}"


def fold_of_name(name: str) -> tuple[str, str] | None:
    """Return the data set and the fold, such as ``2/5``, that a name made by ``fold_name`` stands for."""
    found = _FOLD_NAME.fullmatch(name)
    if found is None or not int(found[2]) <= int(found[3]) <= MOST_FOLDS or found[3] == "1":
        return None
    return found[1], f"{found[2]}/{found[3]}"


def prepare_command(
    name: str, data_dir: str | None = None, *, kind: str = IMAGES, location: str = "DIR"
) -> str:
    """Return the command that prepares a data set; the call, where only Python can give its examples.

    Args:
        name: of the data set; ``auto`` stands for the command's own choice.
        data_dir: the folder of data sets; None: labkit's own.
        kind, location: of the source of somebody's own data set.
    """
    if is_own(name) and kind == EXAMPLES:
        folder = f", data_dir={data_dir!r}" if data_dir else ""
        return f"labkit.prepare_data({name!r}, train=...{folder}) in Python, with the same examples"
    if is_own(name) and kind == CORRECTED:
        words = ["labkit", "data", "correct", location, "--name", name]
        if data_dir:
            words += ["--marks", f"{data_dir}/{name}/{MARKS_NAME}", "--data-dir", data_dir]
        return shlex.join(words)
    is_fold = kind == FOLD or (location == "DIR" and fold_of_name(name) is not None)
    if is_own(name) and not is_fold:
        flag = kind if kind in OWN_FILES else IMAGES
        which = f" --{flag} {shlex.quote(location)} --name {shlex.quote(name)}"
    else:
        which = "" if name == AUTO else f" --dataset {shlex.quote(name)}"
    return f"labkit data prepare{which}" + (f" --data-dir {shlex.quote(data_dir)}" if data_dir else "")


def unknown_data_set(name: str, data_dir: str, prepared: Sequence[str], *, is_home: bool) -> InputError:
    """Return the error for a name that no prepared data set has.

    Args:
        name: as the user gave it.
        data_dir: the folder that was searched.
        prepared: the names of the data sets there.
        is_home: whether the folder is labkit's own, where commands look without ``--data-dir``.
    """
    near = nearest(name, [*prepared, *BUILT_IN])
    listed = ", ".join(prepared[:_LISTED]) or "none"
    if len(prepared) > _LISTED:
        listed += f" and {len(prepared) - _LISTED:,} more (labkit data list)"
    command = prepare_command(name, None if is_home else data_dir)
    return InputError(
        f"--dataset is {name!r}, which is not prepared in {data_dir}"
        + (f"; did you mean {near!r}?" if near else ";")
        + f" prepared there: {listed}; labkit's own: {', '.join(BUILT_IN)}; "
        + (f"to make it: {command}" if fold_of_name(name) else f"for pictures of your own: {command}")
    )
