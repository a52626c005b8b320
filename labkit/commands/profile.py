"""``labkit profile``: where the time of a training step goes, and how near it comes to the machine's best."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from labkit.commands.flags import Flag, LocalPath, Preset
from labkit.config import Config
from labkit.data.recipe import requested_config
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.tables import print_table

if TYPE_CHECKING:
    from labkit.experiments.profile import Profile

MAX_STEPS = 1000  # a trace of a step is about a megabyte, held in memory until it is written
SHOWN_TYPES = 3


def profile(
    *,
    steps: int = 10,
    output: Annotated[LocalPath | None, Flag(metavar="DIR")] = None,
    preset: Preset = None,
    **flags: Any,
) -> int:
    """Profile and print. Raises InputError for what can't be profiled, before anything is loaded.

    The other flags are those of labkit train, but for --job-dir, --start-from and a cluster's: see labkit
    train --help-all.

    Args:
        steps: Steps that are timed; as many again are traced.
        output: Keeps the trace in this folder, for TensorBoard's profile plugin. Default: it is deleted.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"--steps is {steps}; allowed: a whole number from 1 to {MAX_STEPS}")
    config = requested_config(preset, flags)
    _check_alone(config)
    from labkit.experiments.profile import profile_training

    made = profile_training(config, steps=steps, output=None if output is None else Path(output))
    _print_times(made)
    _print_metrics(made)
    if output:
        print(f"trace: {output}; see it with: xprof --logdir {shlex.quote(output)} (docs/tensorboard.md)")
    return 0


def _check_alone(config: Config) -> None:
    """Raise InputError for a run directory, initial weights or a cluster."""
    if config.run.job_dir is not None:
        raise InputError(
            f"--job-dir is {config.run.job_dir!r}, but labkit profile writes no run; leave it out, "
            "or name a folder for the trace with --output"
        )
    if config.transfer.start_from is not None:
        raise InputError(
            f"--start-from is {config.transfer.start_from!r}, but a step takes as long whatever the weights "
            "are; leave it out"
        )
    from labkit.training.checks import refuse_cluster

    refuse_cluster(config)


def _print_times(profile: "Profile") -> None:
    print(
        f"{profile.model}, {profile.parameters:,} parameters, on {profile.device}; "
        f"batch {profile.batch_size}, {profile.precision}"
    )
    if profile.image_size is not None:
        print(
            f"images of {profile.image_size} x {profile.image_size} pixels, with which "
            "--progressive-resizing begins; set it to none for a step with the whole ones"
        )
    times = profile.times
    if times is None:
        print("by operation: for the CPU only; TensorBoard's profile plugin shows a GPU's (--output DIR)")
        return
    rows: list[tuple[str, ...]] = [
        (kind.kind, f"{kind.operations:,.0f}", *_cells(kind.seconds, times.seconds), _types(kind.types))
        for kind in sorted(times.kinds, key=lambda kind: -kind.seconds)
    ]
    rows.append(("nothing runs", "", *_cells(times.idle_seconds, times.seconds), "Python, dispatch, waiting"))
    operations = sum(kind.operations for kind in times.kinds)
    rows.append(("a step", f"{operations:,.0f}", *_cells(times.seconds, times.seconds), ""))
    header = ("kind of operation", "number", "ms a step", "share", "most of it")
    print_table(header, rows, right=header[1:4])
    print(
        f"Wall time of {counted(times.steps, 'traced step')}; operations that run at once share it equally. "
        "Tracing itself takes some.\n"
    )


def _print_metrics(profile: "Profile") -> None:
    cores = profile.cpu_seconds_per_step / profile.seconds_per_step
    print(
        f"untraced: {profile.seconds_per_step * 1e3:,.1f} ms a step, {profile.examples_per_second:,.0f} "
        f"examples/s; of a step {profile.waited_per_step * 1e3:,.1f} ms waiting for input; "
        f"{cores:.2f} cores busy"
    )
    print(
        f"arithmetic: {profile.flops_per_step / 1e9:,.1f} GFLOP a step (convolutions and dense layers), "
        f"{profile.gflops:,.0f} GFLOP/s: {profile.gflops / profile.ceiling_gflops:.0%} of the "
        f"{profile.ceiling_gflops:,.0f} GFLOP/s that large {profile.precision.removeprefix('mixed_')} matrix "
        "products reach here"
    )


def _cells(seconds: float, whole: float) -> tuple[str, str]:
    return f"{seconds * 1e3:,.2f}", f"{seconds / whole:.1%}"


def _types(names: tuple[str, ...]) -> str:
    """Return the first few, oneDNN's kernels by the name of what they replace."""
    more = ", …" if len(names) > SHOWN_TYPES else ""
    return ", ".join(re.sub("^_Mkl(Native)?", "", name) for name in names[:SHOWN_TYPES]) + more
