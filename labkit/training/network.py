"""Whether a network can be trained as it was asked for: what only its layers can tell."""

import keras

from labkit.config import Config
from labkit.errors import InputError
from labkit.models.resizing import check_image_sizes
from labkit.models.stages import HEAD
from labkit.optim.muon import check_muon
from labkit.transfer.freezing import Freezing

__all__ = ["check_network"]


def check_network(model: keras.Model, config: Config) -> Freezing:
    """Return which of the network's layers are frozen when.

    Raises InputError where it can't take images of a size that it is to be shown, where what is to be frozen
    isn't there or is everything, where a frozen head has a learning rate of its own, and where muon would
    have nothing to move, or spoil something.
    """
    check_image_sizes(config.data.image_sizes, model)
    freezing = Freezing(model, config.transfer)
    factor = config.transfer.head_learning_rate_factor
    if factor != 1 and HEAD in freezing.at(config.run.train_steps - 1):
        raise InputError(
            f"--head-learning-rate-factor is {factor} with --freeze {config.transfer.freeze!r}, which holds "
            f"{HEAD}, the head of {model.name}, to the end; leave one of them out"
        )
    if config.optimizer.optimizer == "muon":
        check_muon(model, freezing.at(0))
    return freezing
