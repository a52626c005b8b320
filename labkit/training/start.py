"""The run directory of a training: taken, checked, restored, written to, in this order."""

import re
import shutil

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.runs import RunDirectory, RunLock, process_alive, write_json_atomic
from labkit.training.admission import check_disk_space
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console
from labkit.training.devices import DevicePlan
from labkit.training.loop import TrainLoop
from labkit.training.provenance import describe_environment
from labkit.training.result import TrainResult
from labkit.training.session import make_session
from labkit.training.signals import stop_on_signals

__all__ = ["train_run"]


def train_run(
    config: Config,
    manifest: Manifest,
    plan: DevicePlan,
    run: RunDirectory,
    *,
    overwrite: bool = False,
    data_note: str = "",
    asked_for: str = "",
) -> TrainResult:
    """Train the run in ``run`` from where it stands to its last step.

    Args:
        config: resolved: its data set is the manifest's.
        manifest: of the prepared data set.
        plan: devices, on which TensorFlow is configured already.
        run: admitted by ``labkit.training.admission.admit``.
        overwrite: discard what is there.
        data_note: the line that said which data set was chosen.
        asked_for: the data set as the user named it, ``auto`` perhaps.

    Raises InputError, before the run is changed, where another process writes it, its checkpoints belong to
    other data, or the newest can't be restored.
    """
    run.create()
    lock = RunLock(run)
    if not lock.acquire():
        raise InputError(
            f"{run.path} is being written by another process; wait for it or name another --job-dir"
        )
    console = None
    try:
        if overwrite:
            _discard(run)
        store = CheckpointStore(run.checkpoints_path, config.run.keep_checkpoints)
        state = _checked_state(store, run, manifest)
        session = make_session(config, manifest, plan)
        # Weights and velocities in float32: the checkpoints kept, the best, and one being written.
        check_disk_space(run.path, session.num_parameters() * 8 * (config.run.keep_checkpoints + 2))
        if state is not None:
            store.restore(session.checkpoint(), state.step)
        store.remove_unfinished()
        _remove_unfinished_files(run)
        console = Console(run.log_path)
        write_json_atomic(run.config_path, config.to_json())
        environment = describe_environment(config, manifest, plan, data_note, asked_for)
        write_json_atomic(run.environment_path, environment)
        with stop_on_signals() as stop:
            return TrainLoop(session, run, store, console).run_to_end(state, stop)
    finally:
        if console:
            console.close()
        lock.release()


def _discard(run: RunDirectory) -> None:
    """Remove what a run wrote, and nothing else that lies there.

    The configuration goes last: until then the directory is known as a run.
    """
    for folder in (run.events_path, run.checkpoints_path, run.predictions_path):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for path in (run.metrics_path, run.status_path, run.environment_path, run.log_path, run.config_path):
        path.unlink(missing_ok=True)
    run.create()


def _remove_unfinished_files(run: RunDirectory) -> None:
    """Remove what killed processes were about to rename into place: ``.<name>.<process id>….tmp``."""
    for folder in (run.path, run.predictions_path):
        for path in folder.glob(".*.tmp"):
            owner = re.search(r"\.(\d+)(\.\d+)?\.tmp$", path.name)
            if owner and not process_alive(int(owner[1])):
                path.unlink(missing_ok=True)


def _checked_state(store: CheckpointStore, run: RunDirectory, manifest: Manifest) -> CheckpointState | None:
    state = store.latest_state()
    if state is not None and state.data_checksum != manifest.checksum:
        raise InputError(
            f"{run.path} was trained on other data than {manifest.directory} holds now "
            f"(checksum {state.data_checksum[:12]} there, {manifest.checksum[:12]} here); "
            "prepare the same split again, or start anew with --overwrite"
        )
    return state
