"""The optimizer that a configuration names."""

import keras

from labkit.config import OptimizerConfig
from labkit.optim.adamw import AdamW
from labkit.optim.optimizer import Optimizer
from labkit.optim.sgd import SGD

__all__ = ["make_optimizer"]


def make_optimizer(model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> Optimizer:
    """Return the optimizer; see ``Optimizer`` for the arguments. Call it inside ``strategy.scope()``."""
    return (AdamW if config.optimizer == "adamw" else SGD)(model, config, head_factor)
