"""``labkit.KerasRecorder``: a callback of Keras that records ``model.fit`` as a run."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from labkit.recording.recorder import Recorder, start_run


class KerasRecorder(keras.callbacks.Callback):
    """Records ``model.fit(x, y, callbacks=[labkit.KerasRecorder("mine")])`` as a run.

    There is a row for each batch and for each validation. Keras gives the mean over the epoch so far; rows
    have that of the batch alone, computed from the metric's sums, sample weights included. The learning
    rate is the one that the batch was trained with. With ``steps_per_execution``, a row is of so many
    batches. A metric that isn't a mean over images, such as AUC or a root mean square, is in the rows of
    validations only.

    A second ``fit`` with the same callback goes on with the run. Keras doesn't tell callbacks of an error in
    ``fit``: the run then ends with the program, or with ``KerasRecorder.recorder.fail(why)``.

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
        self._epoch = -1
        self._batches = 0  # of this epoch
        self._means: dict[str, keras.metrics.Mean] = {}
        self._summed: dict[str, tuple[float, float]] = {}  # over these batches: total and weight of a metric
        self._learning_rate = 0.0

    @property
    def recorder(self) -> Recorder:
        """The recorder, from the beginning of ``fit`` on, for rows and images of your own."""
        assert self._recorder is not None, "fit hasn't begun"
        return self._recorder

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._recorder is None:
            self._recorder = start_run(**self._given)
        else:
            self._recorder = start_run(job_dir=self._recorder.path, resume_from=self._step)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        # A second fit counts from 0 again, or from initial_epoch.
        self._epoch, self._batches, self._summed = max(epoch, self._epoch + 1), 0, {}
        if steps := self.params.get("steps"):
            self.recorder.reached(self._step, self._step + steps * (self.params["epochs"] - epoch))

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        # Behind the batch, that of a schedule is the next one's.
        self._learning_rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        steps = self.params.get("steps")
        batches = min(batch + 1, steps or batch + 1)  # Keras counts on where the last execution has fewer
        self._step += batches - self._batches  # several with steps_per_execution
        self._batches = batches
        row: dict[str, Any] = {}
        self._means = self._means if self._summed else _means_of(self.model)  # once in an epoch
        for name, metric in self._means.items():
            if name in (logs or {}):
                summed = float(metric.total), float(metric.count)
                total, weight = self._summed.get(name, (0.0, 0.0))
                if summed[1] > weight:  # else all images of the batch have the weight 0
                    row[name] = (summed[0] - total) / (summed[1] - weight)
                self._summed[name] = summed
        row["learning_rate"] = self._learning_rate
        if steps:
            row["epoch"] = self._epoch + batches / steps
        self.recorder.log(self._step, split="train", **row)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        values = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        if values:
            found: dict[str, Any] = {name.removeprefix("val_"): value for name, value in values.items()}
            self.recorder.log(self._step, split="validation", **found, epoch=self._epoch + 1.0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.recorder.finish()


def _means_of(model: keras.Model) -> dict[str, keras.metrics.Mean]:
    """Return the metrics of a model that are means over images, its loss among them, by their names in logs.

    Keras gives a metric of several outputs, and the second one of a name, another name there.
    """
    found: dict[str, Any] = {}
    for metric in model.metrics:
        parts = getattr(metric, "metrics", None)
        found |= dict(zip(metric.result(), parts, strict=True)) if parts else {metric.name: metric}
    return {
        name: metric
        for name, metric in found.items()
        if isinstance(metric, keras.metrics.Mean) and type(metric).result is keras.metrics.Mean.result
    }
