"""The results of the notebook: the workers' speed, the predictions, and a summary of the run."""

import os
import subprocess
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.analysis.predictions import Predictions, load_predictions, of_another_checkpoint
from labkit.cluster.reaped import start_reaped
from labkit.config import Config
from labkit.errors import InputError
from labkit.notebook.prepared import Prepared, banner_html
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics
from labkit.startup.child import python_command

if TYPE_CHECKING:
    from labkit.training.plan import TrainResult

__all__ = ["RESULT_MIME", "Conclusion", "conclude", "predictions_of", "show_workers"]

RESULT_MIME = "application/vnd.labkit.result+json"


def predictions_of(result: "TrainResult") -> Predictions:
    """Return the predictions for the test set, or for the validation set if the run doesn't use the test set.

    If the run has none yet, they are made now, in a child process.

    Raises InputError if the training hasn't finished, or if the checkpoint or the data are missing.
    """
    run = result.run
    if result.state != "finished":
        raise InputError(f"there are no predictions yet; the training is {result.state}: {result.message}")
    split = "test" if Config.from_json(run.read_config()).run.evaluate_test else "validation"
    if not (run.predictions_path / f"{split}.npz").is_file():
        _evaluate(run, split)
    predictions = load_predictions(run, split)
    if of_another_checkpoint(run, predictions):  # somebody evaluated it since
        _evaluate(run, split)
        predictions = load_predictions(run, split)
    return predictions


def _evaluate(run: RunDirectory, split: str) -> None:
    """Write the predictions for a split, in a child process that ends when this one does.

    A child process is needed because TensorFlow's threads and devices can't be changed in this one, and a run
    that a cluster trained uses other ones.
    """
    command = python_command("-m", "labkit", "evaluate", run.path, "--split", split)
    process, control = start_reaped(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, said = process.communicate()
    finally:
        os.close(control)
        process.wait()
    if process.returncode:
        reason = (said.decode(errors="replace").strip() or "no reason was given").splitlines()[-1]
        raise InputError(f"predictions can't be made: {reason.removeprefix('labkit: error: ')}")


def show_workers(run: RunDirectory) -> None:
    """Show the speed of each worker of a cluster and how it spent its time, or say that there is none."""
    from labkit.notebook.widgets import explore_workers

    workers = read_worker_metrics(run.cluster_path)
    if workers:
        explore_workers(workers)
    elif run.cluster_path.is_dir():
        print("This run was too short to measure its workers: their first step compiles and isn't counted.")
    else:
        print(
            "One process trained this run. With another strategy, this cell shows the speed of each worker."
        )


@dataclass(frozen=True)
class Conclusion:
    """The result of the notebook, as text for people and as JSON (``RESULT_MIME``) for programs."""

    run: str
    state: str
    did_work: bool
    dataset: str
    data_note: str
    devices: str
    banner: str
    split: str
    accuracy: float
    examples: int
    step: int

    def __str__(self) -> str:
        return (
            f"{self.split} accuracy {self.accuracy:.4f} on {self.dataset}, "
            f"{counted(self.examples, 'example')}, step {self.step}, {self.devices}\nrun {self.run}"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        heading = f"{self.split} accuracy {self.accuracy:.2%}"
        shown = (
            f"{banner_html(self.banner)}<p style='font-size:1.3em'><b>{heading}</b> "
            f"on {escape(self.dataset)} ({counted(self.examples, 'example')}, "
            f"weights of step {self.step:,}, {escape(self.devices)})</p>"
            f"<p>Run: <code>{escape(self.run)}</code></p>"
        )
        return {"text/plain": str(self), "text/html": shown, RESULT_MIME: dict(vars(self))}


def conclude(prepared: Prepared, result: "TrainResult", predictions: Predictions) -> Conclusion:
    """Return the accuracy that was reached, the data and devices, and the run directory.

    Devices and banner are taken from the run's record, because an earlier session may have trained the run on
    other devices.
    """
    summary, recorded = predictions.summary, result.run.read_environment()
    return Conclusion(
        run=str(result.run.path),
        state=result.state,
        did_work=result.did_work,
        dataset=prepared.manifest.dataset,
        data_note=prepared.data_note,
        devices=str(recorded.get("description") or prepared.devices.describe()),
        banner=str(recorded.get("banner") or (prepared.devices.banner if result.did_work else "")),
        split=str(summary.get("split", "test")),
        accuracy=1 - float(predictions.wrong.mean()),
        examples=len(predictions),
        step=int(summary.get("checkpoint_step", result.step)),
    )
