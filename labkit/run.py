"""``labkit.load_run`` and ``labkit.runs``: runs as objects with arrays. Needs no TensorFlow."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.config import Config
from labkit.config.config import recorded_by, recorded_config
from labkit.config.fields import argument, has_type, plain
from labkit.errors import InputError, short
from labkit.parts.trust import with_consent
from labkit.run_directory import RunDirectory, Status, list_runs
from labkit.run_directory.checkpoints import checkpoint_path, checkpoint_steps
from labkit.run_directory.directory import check_folders
from labkit.run_directory.find import find_run, known_runs, missing_config
from labkit.run_directory.metrics import chosen_step, own_test
from labkit.startup.child import python_command
from labkit.startup.process import Child

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from labkit.analysis.predict import PredictedImages
    from labkit.analysis.predictions import Predictions, Signature
    from labkit.analysis.slices import Slice
    from labkit.data.batch import StepBatch
    from labkit.experiments.replay.step import Replay
    from labkit.figures.explorer import PredictionExplorer
    from labkit.figures.monitor import RunMonitor
    from labkit.tensorboard.view import TensorBoard


@contextmanager
def tensorflow_left_as_it_was() -> Iterator[None]:
    """After the block, TensorFlow's switches that a training turns on are as they were, for other work."""
    before = (False, False, True)  # TensorFlow's defaults
    if "tensorflow" in sys.modules:
        from labkit.startup.tf_compat import switches

        before = switches()
    try:
        yield
    finally:
        if "tensorflow" in sys.modules:
            from labkit.startup.tf_compat import restore_switches

            restore_switches(before)


class Run:
    """A run, whether it is still training or not. Each attribute and method reads the files anew.

    Args:
        path: the run directory.

    Raises InputError where there is no run, and for one whose folders hold links.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = RunDirectory(argument("path", path, os.PathLike))
        if not self._directory.exists():
            reason = missing_config(self._directory) or "it has no config.json"
            raise InputError(f"{self.path} is not a run directory: {reason}")
        check_folders(self._directory)
        self._predictions: dict[str, tuple[Signature, Predictions]] = {}  # that were read

    @property
    def path(self) -> Path:
        """The run directory, absolute."""
        return self._directory.path

    @property
    def name(self) -> str:
        """The directory's name."""
        return self._directory.name

    @property
    def config(self) -> Config:
        """The whole configuration, defaults included. Raises InputError where the file is damaged.

        A file of code and an address to listen on that this account hasn't trained this run with are left
        out, with a warning: whoever trains with this configuration hasn't asked for them.
        """
        config, left_out = with_consent(recorded_config(self._directory))
        if left_out:
            warnings.warn(f"{self.path}: left out of its configuration: {left_out}", stacklevel=2)
        return config

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, devices, command, git commit and data set that the run recorded; empty before it did."""
        return self._directory.read_environment()

    @property
    def status(self) -> Status | None:
        """The last ``status.json``: state, step, total_steps, message and more; None before the first."""
        return self._directory.read_status()

    @property
    def state(self) -> str:
        """``starting``, ``running``, ``finished``, ``interrupted`` or ``failed``.

        ``lost`` for a run whose process is gone, ``stalled`` for one that hasn't reported for some time,
        ``unknown`` before the first status.
        """
        status = self.status
        return status.liveness() if status else "unknown"

    @property
    def step(self) -> int:
        """Completed steps, as the last status says; 0 before the first."""
        status = self.status
        return status.step if status else 0

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folder of each complete checkpoint by its step, in ascending order."""
        folder = self._directory.checkpoints_path
        return {step: checkpoint_path(folder, step) for step in checkpoint_steps(folder)}

    def metrics(self, split: str = "train") -> "dict[str, NDArray[np.float64]]":
        """Return the metrics of one split as columns, one entry for each row, in order of steps.

        Args:
            split: ``train`` (a row for each step), ``validation`` (a row for each evaluation) or ``test``
                (the run's own result; ``evaluations`` has those of other checkpoints).

        Returns float64 [rows] by name: ``step``, ``epoch``, ``loss``, ``accuracy``, ``wall_time`` and the
        others that ``docs/run-directory.md`` lists. A value that a row lacks is NaN. Each step is there
        once, also after an interruption.

        Raises InputError for a split without rows.
        """
        split = argument("split", split, str)
        own, every = self._rows()
        if split == "test":
            return self._columns(split, [] if own is None else [own], every)
        return self._columns(split, every, every)

    def evaluations(self, split: str = "test") -> "dict[str, NDArray[np.float64]]":
        """Return every evaluation of a split as columns, those of ``labkit evaluate`` included, by step.

        Returns float64 [rows] by name, as ``metrics`` does. ``own`` is 1 for the test result that the run
        reported and 0 for those of other checkpoints. Whoever chooses among these by their test accuracy has
        chosen on the test set.

        Raises InputError for a split without evaluations.
        """
        split = argument("split", split, str)
        own, every = self._rows(of_train=True)
        if split == "test":
            every = [{**row, "own": int(row is own)} for row in every]
        return self._columns(split, [row for row in every if split != "train" or "examples" in row], every)

    def _rows(self, **which: bool) -> tuple[Mapping[str, Any] | None, list[dict[str, Any]]]:
        """Return the run's own test result, and all rows that count. ``which``: of ``evaluations_beside``."""
        from labkit.run_directory.reader import evaluations_beside, read_metrics

        reader = read_metrics(self._directory)
        every = [*reader.rows, *evaluations_beside(reader, **which)]
        tests = [row for row in every if row["split"] == "test"]
        chosen = chosen_step(reader.split("validation"))
        return own_test(reader.split("test"), chosen, tests), every

    def _columns(
        self, split: str, rows: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]]
    ) -> "dict[str, NDArray[np.float64]]":
        import numpy as np

        from labkit.run_directory.reader import last_of_each_step

        kept = last_of_each_step(row for row in rows if row.get("split") == split)
        if not kept:
            known = ", ".join(sorted({str(row.get("split")) for row in every})) or "no metrics yet"
            raise InputError(f"run {self.name} has no metrics of the split {split!r}; it has: {known}")
        kept.sort(key=lambda row: row["step"])
        names = dict.fromkeys(name for row in kept for name in row if name != "split")
        return {
            name: np.array([row.get(name, np.nan) for row in kept], np.float64)
            for name in names
            if all(isinstance(row.get(name, 0), int | float) for row in kept)
        }

    def predictions(self, split: str = "test", checkpoint: int | None = None) -> "Predictions":
        """Return what an evaluation of a split predicted, with the images.

        ``checkpoint``: the step that was evaluated. None: the one that the run is judged by, or the last one
        that was evaluated if that one wasn't.

        Returns an object with ``images`` uint8 [n, height, width, channels], ``labels`` int64 [n],
        ``probabilities`` float32 [n, classes], ``predicted`` int64 [n], ``wrong`` bool [n], ``classes``
        (names) and ``confusion`` int64 [true, predicted]. With several labels for each image, ``labels``
        is int64 [n, classes], ``predicted`` bool [n, classes], and ``confusion`` None. Warns if these test
        predictions are of another checkpoint than the run's own test result.

        Raises InputError where that wasn't evaluated yet, or the file is damaged.
        """
        from labkit.analysis.predictions import predictions_of_run

        return predictions_of_run(self._directory, split, self._predictions, checkpoint)

    def slices(self, by: str, split: str | None = None) -> "list[Slice]":
        """Return how good the predictions are on parts of a split, the worst first.

        Args:
            by: ``class``, ``brightness``, or a column that came with the images.
            split: as for ``confusion_matrix``.

        Returns objects with ``name``, ``count``, ``value`` (accuracy, or the mean absolute error where labels
        are numbers), and ``low`` and ``high``, its interval of 95 %.

        Raises InputError for another ``by``, and where there are no predictions.
        """
        from labkit.analysis.predictions import tested_split
        from labkit.analysis.slices import slices_by
        from labkit.data.of_run import data_set_of

        predictions, name = self._shown(split), split or tested_split(self._directory)
        return slices_by(predictions, data_set_of(self._directory), name, argument("by", by, str))

    def predict(
        self,
        images: "NDArray[np.uint8] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
        *,
        checkpoint: str | int = "best",
        skip_damaged: bool = False,
    ) -> "PredictedImages":
        """Predict the classes of images, or the numbers where labels are numbers.

        Args:
            images: uint8 [n, height, width, channels] or [height, width, channels], 1 or 3 channels, or
                without channels, [n, height, width] or [height, width]; or paths of files and folders, and
                patterns such as ``new/*.png``. Other sizes than the network's are fitted to it as the
                pictures of its data set were.
            checkpoint: ``best``, ``last``, or a step.
            skip_damaged: leaves out files that can't be read, instead of raising an error.

        Returns an object with ``probabilities`` float64 [n, classes], ``predicted`` int64 [n], ``classes``,
        ``names`` (paths), ``step`` of the checkpoint, and ``skipped``, the reasons by path.

        Raises InputError for other images, and where the run or its checkpoint is missing or damaged.
        """
        from labkit.analysis.predict import predict

        name, skip = checkpoint_name(checkpoint), argument("skip_damaged", skip_damaged, bool)
        return predict(self._directory, images, checkpoint=name, skip_damaged=skip)

    def tested(self) -> "Predictions":
        """Return the predictions of the run's result: of the test images, or else the validation images.

        If the run has none yet, or those of another checkpoint, they are made now, in a child process. Of a
        run that another program recorded, they are what it gave.

        Raises InputError if the training hasn't finished, or if the checkpoint or the data are missing.
        """
        from labkit.analysis.predictions import (
            load_predictions,
            of_another_checkpoint,
            predictions_of_run,
            tested_split,
        )

        run, split, state = self._directory, tested_split(self._directory), self.state
        if state != "finished":
            said = f": {self.status.message}" if self.status and self.status.message else ""
            raise InputError(f"there are no predictions yet; the training is {state}{said}")
        if recorded_by(run):
            return predictions_of_run(run, split, self._predictions)
        if not (run.predictions_path / f"{split}.npz").is_file():
            _evaluate(run, split)
        found = load_predictions(run, split, self._predictions)
        if of_another_checkpoint(run, found):  # somebody evaluated it since
            _evaluate(run, split)
            found = load_predictions(run, split, self._predictions)
        return found

    def _shown(self, split: str | None) -> "Predictions":
        return self.tested() if split is None else self.predictions(split)

    # ---- what a notebook shows -------------------------------------------------------------------------

    def curves(self) -> None:
        """Show loss, accuracy, learning rate and speed over the steps; JupyterLab adds their smoothing."""
        from labkit.analysis.curves import read_curves
        from labkit.figures.widgets import explore_curves

        explore_curves(read_curves(self._directory))

    def workers(self) -> None:
        """Show how fast each worker of a cluster was and how it spent its time; say where there was none."""
        from labkit.figures.widgets import show_workers

        show_workers(self._directory)

    def confusion_matrix(self, split: str | None = None) -> "Figure":
        """Draw the counts of each true and predicted class; of labels that are numbers, predicted over true.

        Args:
            split: as for ``predictions``. None: of the run's result, the test or else the validation images;
                if the run has no such predictions yet, they are made now.

        Raises InputError where there are none, and for a run whose training hasn't finished.
        """
        from labkit.figures.predictions import confusion_matrix, predicted_and_true

        predictions = self._shown(split)
        if predictions.are_numbers:
            return predicted_and_true(predictions)
        return confusion_matrix(predictions.confusion, predictions.classes)

    def class_accuracy(self, split: str | None = None) -> "Figure":
        """Draw the accuracy of each class; arguments and errors as of ``confusion_matrix``."""
        from labkit.figures import class_accuracy

        return class_accuracy(self._shown(split))

    def mistakes(self, split: str | None = None) -> "PredictionExplorer":
        """Return the most confident mistakes as a figure; JupyterLab adds controls for any prediction.

        Arguments and errors as of ``confusion_matrix``.
        """
        from labkit.figures.explorer import PredictionExplorer

        return PredictionExplorer(self._directory, split, self._shown(split))

    def monitor(self) -> "RunMonitor":
        """Return the curves so far as a figure; JupyterLab adds a live panel with a button that stops."""
        from labkit.figures.monitor import RunMonitor

        return RunMonitor(self._directory)

    def batch(self, step: int, *, data_dir: str | os.PathLike[str] | None = None) -> "StepBatch":
        """Return the training batch of a step, as the network saw it, or will see it.

        It needs no checkpoint, and no TensorFlow unless the run streams its data (``input_path``). With
        asynchronous workers, rows of the metrics are numbered in the order in which the steps ended, so row
        ``step`` may be that of another batch.

        Args:
            step: from 1 to the run's last.
            data_dir: folder of prepared data sets; None: the run's.

        Returns an object with ``images`` uint8 [n, height, width, channels], ``standardized`` float32 of the
        same shape, ``labels`` int32 [n] (with several labels for each image, zeros and ones [n, classes]),
        ``index`` int64 [n], the position of each example in the training split, ``epoch`` int64 [n], from 0,
        and ``classes``, their names.

        Raises InputError for a step outside of the run, and for a data set that is gone or has changed.
        """
        from labkit.experiments.replay.recorded import batch_of_run

        folder = argument("data_dir", data_dir, os.PathLike, optional=True)
        return batch_of_run(self._directory, plain(step), data_dir=folder)

    def replay(
        self, step: int, *, data_dir: str | os.PathLike[str] | None = None, max_steps: int = 1000
    ) -> "Replay":
        """Make one training step again, from the nearest checkpoint before it. The run isn't changed.

        Args:
            step: from 1 to the last one that the run has made.
            data_dir: folder of prepared data sets; None: the run's.
            max_steps: most steps to make between the checkpoint and this step.

        Returns an object with the arrays of ``batch``, and ``losses`` float32 [n] of each example,
        ``probabilities`` float32 [n, classes], ``gradient_norms`` by layer, ``metrics`` (loss, accuracy,
        learning rate), ``first_non_finite``, ``row`` (what the run recorded) and ``loss_is_equal``, which is
        True for a run with ``deterministic`` on the same machine.

        Raises InputError for a step that the run hasn't made, for a data set that is gone or has changed,
        where the nearest checkpoint is too far away, and where TensorFlow already runs with other devices.
        """
        from labkit.experiments.replay.step import replay

        folder = argument("data_dir", data_dir, os.PathLike, optional=True)
        most = argument("max_steps", max_steps, int)
        with tensorflow_left_as_it_was():
            return replay(self._directory, plain(step), data_dir=folder, max_steps=most)

    def tensorboard(self, *others: "Run | str | os.PathLike[str]") -> "TensorBoard":
        """Start TensorBoard on this run, on a free port of 127.0.0.1. It ends with this process.

        In a notebook, the returned object shows TensorBoard's page below the cell, with a link. A second call
        for the same runs returns the same object. Behind a proxy, set ``TENSORBOARD_PROXY_URL``, with
        ``%PORT%`` for the port.

        Args:
            others: runs to show beside this one: objects, paths, or names that ``labkit runs`` lists.

        Returns an object with ``address``, ``runs``, ``running`` and ``close()``.

        Raises InputError where there is no such run, and RuntimeError if TensorBoard doesn't start.
        """
        from labkit.tensorboard.view import show

        runs = [run if isinstance(run, Run) else load_run(run) for run in (self, *others)]
        return show([RunDirectory(run.path) for run in runs])

    def __repr__(self) -> str:
        status = self.status
        steps = f", step {status.step} of {status.total_steps}" if status else ""
        return f"<labkit run {self.name}: {self.state}{steps}>"


def checkpoint_name(checkpoint: Any) -> str:
    """Return ``best``, ``last`` or a step as a text. Raises InputError for a value of another type."""
    kind = int if has_type(plain(checkpoint), int) else str
    return str(argument("checkpoint", checkpoint, kind, allowed="best, last, or a step"))


def _evaluate(run: RunDirectory, split: str) -> None:
    """Write the predictions for a split, in a child process that ends when this one does.

    In this process TensorFlow's threads and devices can't be changed any more, and a run that a cluster
    trained uses other ones.
    """
    with Child(python_command("-m", "labkit", "evaluate", run.path, "--split", split)) as child:
        last = [line for line in child.lines() if line][-1:]
        if child.wait():
            reason = child.reason or "".join(last) or "no reason was given"
            raise InputError(f"predictions can't be made: {reason}")


def load_run(run: str | os.PathLike[str]) -> Run:
    """Return the run at a path, or of a name that ``labkit runs`` lists.

    Raises InputError, with the newest runs, where there is none.
    """
    allowed = "a path, or a name that labkit runs lists"
    return Run(find_run(argument("run", run, os.PathLike, allowed=allowed)))


def runs(folder: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs of a folder, the one that was active last first.

    Args:
        folder: a folder of run directories; None: ``runs`` in labkit's home, and the runs that labkit made
            elsewhere.

    Returns an empty list where there are none. A run that can't be opened is left out, with a warning.
    Raises InputError where ``folder`` isn't a directory.
    """
    folder = argument("folder", folder, os.PathLike, optional=True)
    if folder is not None and not Path(os.path.expanduser(folder)).is_dir():
        raise InputError(f"{short(folder)} is not a directory; name one that holds runs")
    found = known_runs() if folder is None else list_runs(Path(os.path.expanduser(folder)))
    listed = []
    for run in found:
        try:
            listed.append(Run(run.path))
        except InputError as error:  # its folders hold a link, or it is gone by now
            warnings.warn(f"left out: {error}", stacklevel=2)
    return listed
