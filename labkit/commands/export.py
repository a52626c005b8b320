"""``labkit export``, ``metrics``, ``trace``, ``report``: files about runs, to be read elsewhere."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from labkit.commands.flags import DataDir, Flag, LocalPath, RunName, takes
from labkit.errors import InputError, require_extra
from labkit.export import api
from labkit.home import shipped
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import output_file
from labkit.run_directory.find import find_run, run_to_read
from labkit.run_directory.worker_metrics import KEPT_STEPS
from labkit.startup.child import python_command
from labkit.tables import print_table

MAX_RUNS = 8  # of a report: as many as there are colours for


@takes(
    api.export,
    leave_out=("job_dir",),
    checkpoint=Flag(metavar="best|last|STEP"),
    format=Flag(choices=tuple(api.FORMATS)),
)
def export(run: RunName, *, data_dir: DataDir | None = None, **given: Any) -> int:
    """Export a run. Returns 0 where the file was written, 1 where it failed its check."""
    result = api.export(str(find_run(run)), data_dir=data_dir, announce=print, **given)
    if result.comparison is not None:
        _print_comparison(result.comparison, result.description)
    if not result.written:
        print("they differ by more than allowed; nothing was written")
        return 1
    taken, given = result.description["input"], result.description["output"]
    print(
        f"{result.description['model']}, step {result.step}: {_shape(taken)} ({taken['values']}) to "
        f"{_shape(given)}; classes and origin: {result.path.name}.json"
    )
    return 0


def _print_comparison(comparison, description) -> None:
    name, found = description["output"]["name"], comparison.to_json()
    metric = "mean_absolute_error" if name == "numbers" else "accuracy"
    if description["run"]["precision"] != "float32":
        print(f"the run computed in {description['run']['precision']}; compared is float32 with its weights")
    print(
        f"{name}: largest difference {found['max_difference']:.2e}, allowed "
        f"{found['tolerance'] * found['scale']:.2e} ({found['tolerance']:g} of the largest, "
        f"{found['scale']:.4g})"
    )
    print(
        f"same prediction for {found['equal_predictions']:.2%}; {metric.replace('_', ' ')} "
        f"{found[f'{metric}_exported']:.4f} exported, {found[f'{metric}_run']:.4f} of the run's network"
    )


def _shape(tensor) -> str:
    sizes = ", ".join("batch" if size is None else str(size) for size in tensor["shape"])
    return f"{tensor['name']} {tensor['dtype']} [{sizes}]"


# ---- metrics -------------------------------------------------------------------------------------------


def metrics(run: RunName, *, output: Annotated[LocalPath, Flag(metavar="FILE")] = "metrics.csv") -> int:
    """Write the metrics. Raises InputError for a run that isn't there and for an unknown ending.

    Args:
        output: File to write, CSV or Parquet by its ending: .csv or .parquet. One that is there is replaced.
    """
    found = run_to_read(run)
    from labkit.export.metrics import FORMATS, write_metrics

    path = output_file(output, tuple(FORMATS))
    try:
        written = write_metrics(found, path)
    except OSError as error:
        if error.filename is None or Path(error.filename).parent != path.parent:
            raise
        raise InputError(f"--output {path} can't be written: {error.strerror}; name another file") from None
    print(f"{path}: {written.rows:,} rows, {written.columns} columns")
    for note in written.notes:
        print(f"note: {note}")
    return 0


# ---- trace ---------------------------------------------------------------------------------------------


def trace(
    run: RunName,
    *,
    steps: int = 5,
    output: Annotated[LocalPath | None, Flag(metavar="FILE")] = None,
) -> int:
    """Write the last steps of a cluster's workers. Raises InputError before anything is written.

    Args:
        run: Directory of a cluster's run, or its name.
        steps: Last steps to take, at most 50.
        output: File to write: .json or .json.gz for Perfetto, .xplane.pb for TensorBoard. Default:
            <run>-trace.json in the current folder.
    """
    from labkit.analysis.timeline import FORMATS, KINDS, read_timeline, write_trace

    if not 1 <= steps <= KEPT_STEPS:
        raise InputError(f"--steps is {steps}; allowed: 1 to {KEPT_STEPS}")
    found = run_to_read(run)
    path = output_file(output or f"{found.name}-trace.json", tuple(FORMATS)).absolute()
    timeline = read_timeline(found, steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(timeline, path)
    made = timeline.steps
    workers = counted(len(timeline.offsets), "worker")
    print(f"{counted(len(made), 'step')} of {workers}, {made[0]} to {made[-1]}")
    print_table(
        ("milliseconds a step", *KINDS, "clock put forward"),
        [
            (
                worker,
                *(f"{1e3 * seconds:.1f}" for seconds in timeline.seconds(worker).values()),
                f"{1e3 * offset:.1f}",
            )
            for worker, offset in timeline.offsets.items()
        ],
        right=(*KINDS, "clock put forward"),
    )
    if not timeline.has_exchanges:
        print("note: no exchange was measured: with --deterministic TensorFlow refuses to read the clock")
    if path.name.endswith(".xplane.pb"):
        print(f"wrote {path}, for TensorBoard with xprof")
    else:
        print(f"open {path} in https://ui.perfetto.dev, or in Chromium at chrome://tracing")
    return 0


# ---- report --------------------------------------------------------------------------------------------


def report(
    *runs: Annotated[str, Flag(metavar="RUN", nargs="+")],
    output: Annotated[LocalPath, Flag(metavar="FILE")] = "report.html",
) -> int:
    """Write a report. Raises InputError for runs that aren't there and an output that can't be written.

    Args:
        runs: Directories of runs, or their names, up to eight. Several are compared.
        output: File to write; one that is there is replaced.
    """
    named = list(dict.fromkeys(find_run(name) for name in runs))
    if len(named) > MAX_RUNS:
        raise InputError(f"{len(named)} runs are given; allowed: at most {MAX_RUNS} in a report")
    path = output_file(output, (".html", ".htm"))
    for run in named:
        check_folders(RunDirectory(run))
    require_extra("app", ("streamlit", "msgspec", "tsdownsample", "PIL"), "labkit report")
    sys.stdout.flush()
    # The dashboard draws the report. It knows labkit, but labkit doesn't import it.
    command = python_command(shipped("app") / "report", path, *named)
    return subprocess.run(command, check=False).returncode
