"""What a notebook ends with: who trained, the predictions of its run, and its last word."""

import os
import subprocess
import sys
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.analysis.predictions import Predictions, load_predictions
from labkit.cluster import subreaper
from labkit.config import Config
from labkit.errors import InputError
from labkit.notebook.session import Prepared, banner_html
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

if TYPE_CHECKING:
    from labkit.training.result import TrainResult

__all__ = ["RESULT_MIME", "Conclusion", "conclude", "predictions_of", "show_workers"]

RESULT_MIME = "application/vnd.labkit.result+json"


def predictions_of(result: "TrainResult") -> Predictions:
    """Return the predictions of the test set; of the validation set where the run left the test set alone.

    They are made now where the run has none. Raises InputError where the training hasn't finished, or where
    the checkpoint or the data are no longer there.
    """
    run = result.run
    if result.state != "finished":
        raise InputError(f"there are no predictions yet: the training is {result.state}: {result.message}")
    split = "test" if Config.from_json(run.read_config()).run.evaluate_test else "validation"
    if not (run.predictions_path / f"{split}.npz").is_file():
        _evaluate(run, split)
    return load_predictions(run, split)


def _evaluate(run: RunDirectory, split: str) -> None:
    """Write the predictions of a split, in a process of its own that ends with this one.

    TensorFlow's threads and devices are fixed in this one; those of a run that others trained differ.
    """
    control, held = os.pipe()
    try:
        keep = [sys.executable, "-I", "-S", subreaper.__file__, str(control), str(os.getpid())]
        command = [sys.executable, "-m", "labkit", "evaluate", str(run.path), "--split", split]
        ended = subprocess.run([*keep, *command], pass_fds=(control,), capture_output=True, text=True)
    finally:
        os.close(control)
        os.close(held)
    if ended.returncode:
        said = (ended.stderr.strip() or "it said nothing").splitlines()[-1]
        raise InputError(f"there are no predictions: {said.removeprefix('labkit: error: ')}")


def show_workers(run: RunDirectory) -> None:
    """Show how fast each worker of a cluster was and what it did with its time, or say that there is none."""
    from labkit.notebook.widgets import explore_workers

    workers = read_worker_metrics(run.cluster_path)
    if workers:
        explore_workers(workers)
    elif run.cluster_path.is_dir():
        print("This run was too short for its workers to report: the first step of each compiles.")
    else:
        print("One process trained this run; the shares of several show here with another strategy.")


@dataclass(frozen=True)
class Conclusion:
    """The last word of the notebook, for people and (``RESULT_MIME``) for programs."""

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
            f"{self.split} accuracy {self.accuracy:.4f} on {self.dataset}, {self.examples:,} examples, "
            f"step {self.step}, {self.devices}\nrun {self.run}"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        heading = f"{self.split} accuracy {self.accuracy:.2%}"
        shown = (
            f"{banner_html(self.banner)}<p style='font-size:1.3em'><b>{heading}</b> "
            f"on {escape(self.dataset)} ({self.examples:,} examples, "
            f"weights of step {self.step:,}, {escape(self.devices)})</p>"
            f"<p>Run: <code>{escape(self.run)}</code></p>"
        )
        return {"text/plain": str(self), "text/html": shown, RESULT_MIME: dict(vars(self))}


def conclude(prepared: Prepared, result: "TrainResult", predictions: Predictions) -> Conclusion:
    """Return what was reached, on what, and where it is.

    Devices and banner are those that the run recorded: it may have been trained before, and not as it would
    be now.
    """
    summary, recorded = predictions.summary, result.run.read_environment()
    return Conclusion(
        run=str(result.run.path),
        state=result.state,
        did_work=result.did_work,
        dataset=prepared.manifest.dataset,
        data_note=prepared.data_note,
        devices=str(recorded.get("description") or prepared.plan.describe()),
        banner=str(recorded.get("banner") or (prepared.plan.banner if result.did_work else "")),
        split=str(summary.get("split", "test")),
        accuracy=1 - float(predictions.wrong.mean()),
        examples=len(predictions),
        step=int(summary.get("checkpoint_step", result.step)),
    )
