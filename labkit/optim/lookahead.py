"""Weights that are drawn towards an average of their past."""

from collections.abc import Collection

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization

__all__ = ["Lookahead"]


class Lookahead(tf.Module):
    """Slow copies of the weights, and of the moving averages; every so often both meet.

    Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back" (2019), arXiv:1907.08610, as airbench
    has it (arXiv:2404.00498, section 3.5): after every k steps, with progress p from 0 to 1 of the whole
    run::

        slow = a slow + (1 - a) weight;  weight = slow        a = decay**k * p**3

    so that hardly anything is averaged at the start, and over some 1 / (1 - decay) steps at the end. After
    the last step the weights are the slow ones. Make it inside ``strategy.scope()``, before a checkpoint is
    restored.

    Args:
        model: its trainable weights and moving averages are drawn.
        config: ``lookahead_every_steps`` and ``lookahead_decay``.
        total_steps: of the whole run.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, total_steps: int) -> None:
        super().__init__(name="lookahead")
        self._every, self._total = config.lookahead_every_steps, total_steps
        self._decay = config.lookahead_decay**self._every
        norms = [layer for layer in model.layers if isinstance(layer, BatchNormalization)]
        averages = [average for layer in norms for average in (layer.moving_mean, layer.moving_variance)]
        drawn = [*model.trainable_variables, *averages]
        self._variables = [variable.value for variable in drawn]
        owners = {id(weight): layer.name for layer in model.layers for weight in layer.weights}
        self._owners = [owners[id(variable)] for variable in drawn]
        self.slow = []
        for index, variable in enumerate(self._variables):
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                self.slow.append(tf.Variable(variable, trainable=False, name=f"slow_{index}"))

    def reset(self) -> None:
        """Begin anew at the weights as they are."""
        for variable, slow in zip(self._variables, self.slow, strict=True):
            slow.assign(variable)

    def after(
        self, strategy: tf.distribute.Strategy, number: tf.Tensor, frozen: Collection[str] = ()
    ) -> None:
        """Let weights and slow copies meet where step ``number``, int64 from 1, is one for it.

        In cross-replica context, inside a ``tf.function``, behind the update of that step. The weights of
        layers whose names are in ``frozen`` stay as they are, to the bit.
        """
        is_last = tf.equal(number, self._total)
        progress = tf.cast(number, tf.float32) / self._total
        keep = tf.where(is_last, 1.0, self._decay * progress**3)

        def meet() -> None:
            for variable, slow, owner in zip(self._variables, self.slow, self._owners, strict=True):
                if owner in frozen:
                    continue
                strategy.extended.update(variable, _meet, args=(slow, keep), group=False)

        tf.cond(is_last | tf.equal(number % self._every, 0), meet, lambda: None)


def _meet(variable, slow, keep):
    keep = tf.cast(keep, variable.dtype)
    slow.assign(keep * slow + (1 - keep) * variable)
    return variable.assign(slow)
