"""``--precision auto``: the precision that this machine computes faster, measured once and kept."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.config.fields import MEASURED
from labkit.distributed.cpu import CLEARLY_FASTER, bfloat16_instructions, cpu_model, has_no_gpu
from labkit.errors import InputError
from labkit.home import state_home
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json
from labkit.startup.child import python_command
from labkit.startup.process import Child, described_exit
from labkit.training.checks import refuse_cluster

MEASURE = "import json; from labkit.distributed.cpu import step_seconds; print(json.dumps(step_seconds()))"
SECONDS = 120.0  # after which the process that measures is ended; it takes about 6


def with_faster_precision(
    request: Callable[..., Config],
    named: Mapping[str, Any],
    stand_in: Mapping[str, Any],
    *,
    overwrite: bool,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    """Return ``named`` with a precision that can be trained where it is ``auto``.

    A run that is in the job directory keeps its own, unless ``overwrite``.

    Args:
        request, overwrite, announce: as for ``labkit.experiments.batch_size.with_measured``.
        named: flags by the names of their fields.
        stand_in: values in place of what isn't measured yet.

    Raises InputError for a task of a cluster, whose machines may differ, and where a GPU may be used.
    """
    asked = named.get("precision")
    if not isinstance(asked, str) or asked != MEASURED:
        return dict(named)
    first = request({**named, "precision": "float32", **stand_in}, announce=lambda line: None)
    refuse_cluster(first)
    run = None if overwrite or first.run.job_dir is None else RunDirectory(first.run.job_dir)
    if run is not None and run.exists():
        chosen, why = recorded_config(run).model.precision, f"that of the run in {run.path}"
    elif not has_no_gpu() and first.distribution.num_gpus != 0:
        raise InputError(
            "--precision is auto, which measures CPUs only, and this machine may have a GPU; name a "
            "precision, or give --num-gpus 0"
        )
    else:
        chosen, why = faster_precision(announce)
    announce(f"--precision {chosen}: {why}")
    return {**named, "precision": chosen}


def faster_precision(announce: Callable[[str], None] = print) -> tuple[str, str]:
    """Return ``float32`` or ``mixed_bfloat16``, and why. What was measured on this machine before is used.

    Raises InputError where it can't be measured.
    """
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

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.node()}, {cpu_model()}, {cores} cores, tensorflow {version('tensorflow')}"


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
