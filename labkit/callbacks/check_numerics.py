"""``CheckNumerics``: say where the first NaN or Infinity of a run comes from."""

import math
import shutil
from collections.abc import Mapping
from typing import Any

from labkit.callbacks.callback import Callback, TrainingFailed
from labkit.callbacks.training import Training

__all__ = ["CheckNumerics"]

WAY_OUT = "lower --learning-rate, add --warmup-steps or --gradient-clip-norm"


class CheckNumerics(Callback):
    """Ends the run at the first step whose loss, weights or velocities aren't finite, and names the tensor.

    Before each step, the state is copied on the device. After a step with a NaN or an Infinity, the forward
    and backward pass of that step is made again from the copy, on one device and without other processes, and
    every tensor is looked at. The copy is kept as a checkpoint in the run's folder ``numerics``.

    Not for asynchronous clusters, where the weights change during a step.
    """

    def on_start(self, training: Training) -> None:
        import tensorflow as tf

        from labkit.inspection.network import state_variables

        session = training.session
        variables = state_variables(session.model, session.optimizer)

        # Shares the variables' memory until the step overwrites them, so it costs one copy.
        @tf.function
        def copied() -> list[Any]:
            return [tf.identity(variable) for variable in variables]

        @tf.function
        def is_finite() -> Any:
            return tf.reduce_all(
                tf.stack([tf.reduce_all(tf.math.is_finite(variable)) for variable in variables])
            )

        self._copied, self._is_finite = copied, is_finite

    def before_step(self, training: Training, step: int) -> None:
        self._before = self._copied()

    def after_step(self, training: Training, row: Mapping[str, Any]) -> None:
        if not (math.isfinite(row["loss"]) and bool(self._is_finite())):
            raise TrainingFailed(self._explained(training, row["step"], row["loss"]))

    def _explained(self, training: Training, step: int, loss: float) -> str:
        """Keep the state before the step, and return the sentence that says what happened."""
        from labkit.data.step_batch.batch import batch_of_step
        from labkit.inspection.diagnosis import diagnose_step
        from labkit.inspection.network import NetworkCopy

        session, run = training.session, training.run
        config, manifest = session.config, session.manifest
        network = NetworkCopy(config, manifest, session.plan.data_format)
        network.load(self._before, step - 1)
        shutil.rmtree(run.numerics_path, ignore_errors=True)  # of an earlier process of this run
        kept = session.keep_state(run.numerics_path, network.checkpoint(), step - 1)
        state = f"the state before it is kept in {kept.relative_to(run.path)}"
        _, first = diagnose_step(
            network,
            batch_of_step(manifest, config.data, seed=config.run.seed, step=step),
            config,
            num_replicas=session.devices.num_replicas,
            loss=session.loss,
            before=self._before,
            after=self._copied(),
        )
        if first is None:
            what = f"loss is {loss}, but every tensor is finite when one device makes the step again"
        else:
            what = first.sentence(session.devices.num_replicas)
        return f"step {step}: {what}; {state}: labkit replay {run.path} --step {step}; {WAY_OUT}"
