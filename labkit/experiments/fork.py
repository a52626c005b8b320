"""``labkit fork``: a run that shares another one's past up to a step, and goes on with other settings."""

import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.config import Config, by_field, fields_by_name
from labkit.config.config import as_recorded, recorded_config
from labkit.errors import InputError
from labkit.experiments.replay.recorded import recorded_step
from labkit.experiments.replay.step import engine_from_start, plan_replay
from labkit.parts.code import check_code_of_step, record
from labkit.parts.trust import accept, acting, check_trust, files_of
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.checkpoints import checkpoint_path, state_path
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import check_disk_space, check_writable
from labkit.run_directory.files import check_regular, open_run_file, read_object
from labkit.run_directory.find import remember
from labkit.run_directory.metrics import MetricsWriter, Selection
from labkit.run_directory.notes import Lineage, write_lineage
from labkit.run_directory.reader import read_metrics
from labkit.startup.quiet_import import import_tensorflow


def fork(
    parent: RunDirectory,
    step: int,
    changes: Mapping[str, Any],
    path: Path,
    *,
    trust: bool = False,
) -> RunDirectory:
    """Write a run to ``path`` that is ``parent`` up to ``step``, ready to be resumed with other settings.

    A step that the parent keeps no checkpoint of is made again from the nearest one before it.

    Args:
        parent: the run that is forked; it isn't changed.
        step: from 1.
        changes: settings by name or alias.
        path: the fork's directory, which must not exist.
        trust: whether the user consents to what the parent's record runs and opens (``labkit.parts.trust``).

    Raises InputError for a setting that can't change, a step that wasn't made, and a path that is taken.
    """
    check_folders(parent)
    config, changes = recorded_config(parent), by_field(changes)
    rows = _rows(parent, step)
    check_code_of_step(parent, step + 1)  # the fork goes on with it
    forked = _config(config, changes, step, path)
    files = files_of(forked)
    if not acting(forked).keys() <= changes.keys():
        of_parent = {path: files[path] for path in files_of(config) if path in files}
        check_trust(parent, config, of_parent, trust=trust)
    if path.exists():
        raise InputError(f"--job-dir {path} is there already; name a directory that isn't")
    check_writable(path.parent, "--job-dir")
    kept = parent.checkpoint_steps()
    size = sum(file.stat().st_size for file in parent.checkpoints_path.rglob("*") if file.is_file())
    check_disk_space(path, 2 * size)
    folder = path.with_name(f".{path.name[:100]}.fork.tmp")
    shutil.rmtree(folder, ignore_errors=True)
    made = RunDirectory(folder)
    made.create()
    try:
        if step in kept:
            _copy_checkpoint(parent, made, step)
        else:
            _make_checkpoint(parent, made, step, rows)
        best = read_object(state_path(made.checkpoints_path, step)).get("best_step")
        if best in parent.checkpoint_steps() and best != step:  # the best on validation then
            _copy_checkpoint(parent, made, best)
        elif best not in (None, step):
            print(
                f"note: {parent.name} keeps no checkpoint of step {best}, which validation chose until then; "
                "without a better one the fork is judged by its newest"
            )
        _write_past(parent, made, rows)
        record(made, files)
        write_json_atomic(made.config_path, as_recorded(forked).to_json())
        accept(forked, files)
        total = forked.run.train_steps
        message = f"forked from {parent.name} at step {step}; labkit resume {shlex.quote(path.name)} goes on"
        made.write_status(
            Status(state="interrupted", step=step, total_steps=total, message=message, heartbeat=time.time())
        )
        before, after = config.flat(), forked.flat()
        differing = {name: (before[name], after[name]) for name in changes if before[name] != after[name]}
        write_lineage(made, Lineage(str(parent.path), step, differing))
        folder.rename(path)
        remember(RunDirectory(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return RunDirectory(path)


def _config(config: Config, changes: Mapping[str, Any], step: int, path: Path) -> Config:
    """Return the fork's configuration. Raises InputError for what can't change."""
    known = fields_by_name()
    for name, value in changes.items():
        if known[name].fork and value != config.flat()[name]:
            raise InputError(f"--set {name}={value}: a fork can't change it, because {known[name].fork}")
    defaults = {name: info.default for name, info in known.items() if info.role == "task"}
    forked = config.replace({**defaults, **changes, "job_dir": str(path)})
    before, after = config.model.precision, forked.model.precision
    if before != after and "float64" in (before, after):
        raise InputError(
            f"--set precision={after}: a fork can't change it, because the checkpoint holds weights for "
            f"{before}"
        )
    if forked.run.train_steps <= step:
        raise InputError(
            f"--at is {step}, and the fork would end at step {forked.run.train_steps}; "
            f"add --set train_steps={2 * step}, or another number above {step}"
        )
    return forked


def _rows(parent: RunDirectory, step: int) -> list[Mapping[str, Any]]:
    """Return the rows up to a step, and where the run was resumed before it: a pause is no time of training.

    Raises InputError if the run hasn't made the step.
    """
    reader = read_metrics(parent)
    last = max((row["step"] for row in reader.rows if row.get("split") == "train"), default=0)
    if not 1 <= step <= last:
        raise InputError(f"--at is {step}; allowed: 1 to {last}, the last step of {parent.path}")
    pauses = {point.step: point for point in reader.resume_points}
    past: list[Mapping[str, Any]] = []
    for row in reader.rows:
        if row.get("split") not in ("train", "validation") or row["step"] > step:
            continue
        if row["split"] == "train" and (point := pauses.pop(row["step"] - 1, None)):
            past.append({"resumed_at_step": point.step, "wall_time": point.wall_time})
        past.append(row)
    return past


def _write_past(parent: RunDirectory, made: RunDirectory, rows: list[Mapping[str, Any]]) -> None:
    writer = MetricsWriter(made.metrics_path)
    writer.append(rows)
    writer.close()
    for path in (parent.environment_path, parent.transfer_path):
        if path.exists():
            with open_run_file(path) as file:
                (made.path / path.name).write_bytes(file.read())


def _copy_checkpoint(parent: RunDirectory, made: RunDirectory, step: int) -> None:
    try:
        kept, copy = (checkpoint_path(run.checkpoints_path, step) for run in (parent, made))
        check_regular(kept)
        shutil.copytree(kept, copy)
    except (OSError, shutil.Error):
        if step in parent.checkpoint_steps():
            raise
        raise InputError(
            f"the checkpoint of step {step} of {parent.path} was just replaced; choose a newer step"
        ) from None


def _make_checkpoint(
    parent: RunDirectory,
    made: RunDirectory,
    step: int,
    rows: list[Mapping[str, Any]],
) -> None:
    first = min(parent.checkpoint_steps(), default=None)
    if recorded_config(parent).transfer.start_from is not None and (first is None or step < first):
        raise InputError(
            f"--at is {step}; allowed: {'none' if first is None else f'from {first}'}, the first checkpoint "
            f"of {parent.path}, because it started from other weights"
        )
    recorded = recorded_step(parent, step)
    if recorded.is_asynchronous:
        known = ", ".join(map(str, parent.checkpoint_steps()))
        raise InputError(
            f"--at is {step}; allowed: {known}, the checkpoints of {parent.path}, because asynchronous "
            "workers made it"
        )
    import_tensorflow()
    from labkit.training.checkpoints import CheckpointStore

    plan, notes = plan_replay(recorded)
    print(f"there is no checkpoint of step {step}; making it from {recorded.start.describe()}")
    for note in notes:
        print(f"note: {note}")
    network, engine = engine_from_start(recorded, plan, step)
    for _ in range(recorded.start.step, step):
        engine.next_step()
    selection = Selection()
    for row in rows:
        if row.get("split") == "validation":
            selection.add(row)
    state = replace(network.state_after(step), best_step=selection.step, best_accuracy=selection.best)
    CheckpointStore(made.checkpoints_path, keep=1).save(network.checkpoint(), state)
