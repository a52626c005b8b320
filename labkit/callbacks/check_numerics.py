"""``CheckNumerics``: say where the first NaN or Infinity of a run comes from."""

import math
import shutil
from collections.abc import Mapping
from typing import Any

from labkit.callbacks.callback import Callback, TrainingFailed, TrainingView

WAY_OUT = "lower --learning-rate, add --warmup-steps or --gradient-clip-norm"


class CheckNumerics(Callback):
    """Ends the run at the first step whose loss, weights or velocities aren't finite, and names the tensor.

    After each step, the state is copied on the device, as the state before the next one. After a step with a
    NaN or an Infinity, the forward and backward pass of that step is made again from the copy, on one device
    and without other processes, and every tensor is looked at. The copy is kept as a checkpoint in the run's
    folder ``numerics``.

    Not for asynchronous clusters, where the weights change during a step.
    """

    def on_start(self, training: TrainingView) -> None:
        import tensorflow as tf

        self._variables = training.network.state_variables
        dtype = self._variables[0].dtype

        # One vector instead of some two hundred values to return and check. Counts fit in: float32 counts
        # exactly to 16 million.
        @tf.function(autograph=False)
        def copied() -> tuple[Any, Any]:
            parts = [tf.reshape(tf.cast(variable, dtype), [-1]) for variable in self._variables]
            state = tf.concat(parts, axis=0)
            return state, tf.reduce_all(tf.math.is_finite(state))

        self._copied = copied
        self._before, _ = copied()

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        state, is_finite = self._copied()
        if not (math.isfinite(row["loss"]) and bool(is_finite)):
            raise TrainingFailed(self._explained(training, row["step"], row["loss"], state))
        self._before = state

    def _by_variable(self, state: Any) -> list[Any]:
        """Return the value of each variable in a copy of the state."""
        import tensorflow as tf

        parts = tf.split(state, [math.prod(variable.shape) for variable in self._variables])
        return [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            for part, variable in zip(parts, self._variables, strict=True)
        ]

    def _explained(self, training: TrainingView, step: int, loss: float, state: Any) -> str:
        """Keep the state before the step, and return the sentence that says what happened."""
        from labkit.data.batch_of_step import batch_of_step
        from labkit.inspection.diagnosis import diagnose_step
        from labkit.optim.network import TrainedNetwork

        network, run = training.network, training.run
        config, manifest = network.config, network.manifest
        copy = TrainedNetwork(config, manifest, network.data_format)
        before = self._by_variable(self._before)
        copy.load(before, step - 1)
        shutil.rmtree(run.numerics_path, ignore_errors=True)  # of an earlier process of this run
        kept = training.keep_state(run.numerics_path, copy.checkpoint(), step - 1)
        kept_in = f"the state before it is kept in {kept.relative_to(run.path)}"
        _, first = diagnose_step(
            copy,
            batch_of_step(manifest, config.data, seed=config.run.seed, step=step),
            config,
            num_replicas=network.devices.num_replicas,
            loss=network.loss,
            before=before,
            after=self._by_variable(state),
        )
        if first is None:
            what = f"loss is {loss}, but every tensor is finite when one device makes the step again"
        else:
            what = first.sentence(network.devices.num_replicas)
        return f"step {step}: {what}; {kept_in}: labkit replay {run.path} --step {step}; {WAY_OUT}"
