"""``labkit.KerasRecorder``: a callback of Keras that records ``model.fit`` as a run."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from labkit.recording.recorder import Recorder, start_run


class KerasRecorder(keras.callbacks.Callback):
    """Records ``model.fit(x, y, callbacks=[labkit.KerasRecorder("mine")])`` as a run.

    There is a row for each batch and for each validation. Keras tells the mean over the epoch so far; rows
    have that of the batch alone, computed from two such means. The last batch of an epoch may have fewer
    images than the others, so it has no row. With ``steps_per_execution``, a row is of so many batches. A
    metric that isn't a mean over images, such as AUC, is in the rows of validations only.

    A second ``fit`` with the same callback goes on with the run. Keras doesn't tell callbacks of an error in
    ``fit``: the run then ends with the program, or with ``recorder.fail``.

    Args:
        name, config, job_dir, overwrite: as of ``labkit.start_run``.
    """

    def __init__(
        self,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        job_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"job_dir": job_dir, "overwrite": overwrite}
        self._given |= {"name": name, "config": config}
        self._recorder: Recorder | None = None
        self._step = 0
        self._epoch = 0
        self._batches = 0  # of this epoch
        self._sums: dict[str, float] = {}  # over these batches
        self._means: set[str] = set()
        self._waiting: dict[str, Any] | None = None  # the row of the last batch, if it isn't the epoch's last

    @property
    def recorder(self) -> Recorder:
        """The recorder, from the beginning of ``fit`` on, for rows and images of your own."""
        assert self._recorder is not None, "fit hasn't begun"
        return self._recorder

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        total = self._step + steps * epochs if steps and epochs else None
        if self._recorder is None:
            self._recorder = start_run(**self._given, total_steps=total)
        else:
            path, step = self._recorder.path, self._step
            self._recorder = start_run(job_dir=path, total_steps=total, resume_from=step)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch, self._batches, self._sums, self._waiting = epoch, 0, {}, None

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._means:  # metrics exist after the first batch
            self._means = {"loss", *_means_of(self.model)}
        if self._waiting is not None:  # it wasn't the last one
            self.recorder.log(self._waiting.pop("step"), split="train", **self._waiting)
        steps = self.params.get("steps")
        batches = min(batch + 1, steps or batch + 1)  # Keras counts on where the last execution has fewer
        done = batches - self._batches  # several with steps_per_execution
        self._step += done
        means = {name: float(value) for name, value in (logs or {}).items() if name in self._means}
        sums = {name: value * batches for name, value in means.items()}
        row: dict[str, Any] = {
            name: (total - self._sums.get(name, 0.0)) / done for name, total in sums.items()
        }
        row["learning_rate"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        if steps:
            row["epoch"] = self._epoch + batches / steps
        if self._batches == 0:  # its mean is Keras's own
            self.recorder.log(self._step, split="train", **row)
        else:
            self._waiting = {"step": self._step, **row}
        self.recorder.reached(self._step)
        self._batches, self._sums = batches, sums

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        values = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        if values:
            found: dict[str, Any] = {name.removeprefix("val_"): value for name, value in values.items()}
            self.recorder.log(self._step, split="validation", **found, epoch=epoch + 1.0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.recorder.finish()


def _means_of(model: keras.Model) -> set[str]:
    """Return the names of the metrics of a model that are means over images."""
    found: list[Any] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", None) or [metric]
    return {metric.name for metric in found if isinstance(metric, keras.metrics.Mean)}
