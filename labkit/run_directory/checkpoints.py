"""The checkpoints of a run: where they are, which there are, and by which one the run is judged."""

import os
import re
from pathlib import Path

from labkit.errors import InputError, short
from labkit.run_directory.files import read_object

_NAME = re.compile(r"step-(\d{8,})")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step``; ``folder``: of a run's checkpoints."""
    return folder / f"step-{step:08d}"


def state_path(folder: Path, step: int) -> Path:
    """Return the file with the state of the train loop at the checkpoint of ``step``."""
    return checkpoint_path(folder, step) / "state.json"


def checkpoint_steps(folder: Path, *, strict: bool = False) -> list[int]:
    """Return the steps of the complete checkpoints, ascending; none where there is no such folder.

    A folder that can't be read has none, too, unless ``strict``: it then raises OSError. Who writes the run
    must not start over because a disk doesn't answer.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError:
        if strict:
            raise
        return []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def best_checkpoint(folder: Path) -> int | None:
    """Return the step of the checkpoint chosen on validation, or of the newest if that is missing.

    None if there is no checkpoint.
    """
    steps = checkpoint_steps(folder)
    best = read_object(state_path(folder, steps[-1])).get("best_step") if steps else None
    return best if best in steps else steps[-1] if steps else None


def check_checkpoint(folder: Path, checkpoint: str) -> None:
    """Raise InputError unless ``checkpoint`` is best, last or a step that is kept in ``folder``."""
    steps = checkpoint_steps(folder)
    if not steps:
        is_over = read_object(folder.parent / "status.json").get("state") == "finished"
        way = "any more; restore it from a copy, or train anew" if is_over else "yet; train the run further"
        if there := read_object(folder.parent / "pulled.json").get("from"):
            way = f"of a run that was pulled; copy the folder of this name from {short(there)}"
        raise InputError(f"{folder} holds no checkpoint {way}")
    is_step = checkpoint.isascii() and checkpoint.isdecimal() and len(checkpoint) < 20
    if checkpoint not in ("best", "last") and not (is_step and int(checkpoint) in steps):
        known = ", ".join(map(str, steps))
        raise InputError(f"--checkpoint is {checkpoint!r}; allowed: best, last, or one of the steps {known}")
