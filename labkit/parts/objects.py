"""Objects that are given to a function of ``import labkit`` in place of a name, as files that hold them."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.errors import InputError, short
from labkit.parts.source import file_of, source_of

SAVED = "model.keras"


@contextmanager
def as_files(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give ``flags`` with each object in them as the file that holds it, which is there within the block.

    A function or class of a module is that module's file. One that is defined in a notebook or a script gets
    a file with its source and what it uses; a Keras model is saved.

    Raises InputError for another object, and for one that can't be written into a file.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        given = dict(flags)
        if "model" in given:
            given["model"] = _reference("model", given["model"], Path(folder))
        yield given


def _reference(argument: str, value: Any, folder: Path) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(value, keras.Model):
        return str(_saved(argument, value, folder / SAVED))
    name = getattr(value, "__name__", "")
    if not callable(value) or not name:
        raise InputError(
            f"{argument} is {short(value)[:100]}; allowed: a name, 'FILE.py:NAME', a function (input_shape, "
            "num_classes) that returns a Keras model, or a Keras model"
        )
    path = file_of(value)
    if path is None:
        path = folder / f"{name}.py"
        path.write_text(source_of(argument, value), encoding="utf-8")
    return f"{path}:{name}"


def _saved(argument: str, model: Any, path: Path) -> Path:
    """Save a Keras model, with the same bytes each time. Raises InputError where Keras can't."""
    whole = path.with_name("whole.keras")
    try:
        model.save(whole)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        raise InputError(
            f"{argument} is a Keras model that can't be saved ({reason}); give the function that builds it"
        ) from None
    with zipfile.ZipFile(whole) as read, zipfile.ZipFile(path, "w") as written:
        for name in sorted(read.namelist()):
            if name != "metadata.json":  # has the date
                written.writestr(zipfile.ZipInfo(name), read.read(name))
        written.writestr(zipfile.ZipInfo("metadata.json"), "{}")
    whole.unlink()
    return path
