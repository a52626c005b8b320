"""``--precision auto``: the precision that this machine computes faster, measured once and kept."""

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from labkit.distributed.cpu import CLEARLY_FASTER, bfloat16_instructions, cpu_model, has_no_gpu
from labkit.errors import InputError
from labkit.home import state_home
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json
from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit, usable_cores

MEASURE = "import json; from labkit.distributed.cpu import step_seconds; print(json.dumps(step_seconds()))"
SECONDS = 120.0  # after which the process that measures is ended; it takes about 6


def faster_precision(announce: Callable[[str], None] = print, *, num_gpus: int | None = 0) -> tuple[str, str]:
    """Return ``float32`` or ``mixed_bfloat16``, and why. What was measured on this machine before is used.

    ``num_gpus``: of the training. Raises InputError where it may use a GPU, and where it can't be measured.
    """
    if not has_no_gpu() and num_gpus != 0:
        raise InputError(
            "--precision is auto, which measures CPUs only, and this machine may have a GPU; name a "
            "precision, or give --num-gpus 0"
        )
    if not bfloat16_instructions():
        return "float32", "this CPU has no instructions for bfloat16"
    found = kept_seconds()
    if found is None:
        announce("--precision auto: measuring float32 and bfloat16, once on this machine")
        found = _measured()
        keep_seconds(*found)
    ratio = found[0] / found[1]
    chosen = "mixed_bfloat16" if ratio >= CLEARLY_FASTER else "float32"
    return chosen, (
        f"bfloat16 was measured at {ratio:.2f} × the speed of float32 on this CPU ({cpu_model()}); it is "
        f"taken from {CLEARLY_FASTER} × on (labkit doctor measures again)"
    )


def kept_seconds() -> tuple[float, float] | None:
    """Return the kept seconds of a step in float32 and in bfloat16; None if this machine wasn't measured."""
    try:
        values = read_json(_path())[_machine()]
        float32, bfloat16 = float(values["float32"]), float(values["bfloat16"])
    except (InputError, OSError, KeyError, TypeError, ValueError):
        return None
    return (float32, bfloat16) if min(float32, bfloat16) > 0 else None


def keep_seconds(float32: float, bfloat16: float) -> None:
    """Keep the seconds of a step for this machine, in the account's state folder if that can be written."""
    try:
        kept = read_json(_path())
    except (InputError, OSError):
        kept = {}
    measured = {"float32": float32, "bfloat16": bfloat16, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    try:
        _path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json_atomic(_path(), kept | {_machine(): measured})
    except OSError:
        return  # it is measured again next time


def _path() -> Path:
    return state_home() / "precision.json"


def _machine() -> str:
    """Return what the speeds depend on: the processor, how many cores there are to use, TensorFlow."""
    from importlib.metadata import version

    return f"{platform.node()}, {cpu_model()}, {usable_cores()} cores, tensorflow {version('tensorflow')}"


def _measured() -> tuple[float, float]:
    """Measure in a process of its own: in this one, TensorFlow has to begin as the training asks."""
    with Child(python_command("-c", MEASURE), stderr=None) as child:
        code = child.wait(SECONDS)
        lines = list(child.lines()) if code == 0 else []
    if not lines:
        how = f"it took over {SECONDS:.0f} s" if code is None else described_exit(code)
        raise InputError(f"--precision is auto, but it couldn't be measured: {how}; name a precision")
    float32, bfloat16 = json.loads(lines[-1])
    return float32, bfloat16
