"""The callbacks that the configuration asks for."""

from labkit.callbacks.callback import Callback
from labkit.callbacks.check_numerics import CheckNumerics
from labkit.callbacks.early_stopping import EarlyStopping
from labkit.callbacks.inspection import Inspect
from labkit.callbacks.tensorboard import Graph, Images, Profile
from labkit.config import RunConfig

__all__ = ["own_callbacks"]


def own_callbacks(run: RunConfig) -> list[Callback]:
    """Return the callbacks of the options that are set, in the order in which they are called."""
    callbacks: list[Callback] = []
    if run.write_graph:
        callbacks.append(Graph())
    if run.write_images:
        callbacks.append(Images())
    if run.inspect_every_steps:
        callbacks.append(Inspect())
    if run.check_numerics:
        callbacks.append(CheckNumerics())
    if run.profiled_steps:
        callbacks.append(Profile(*run.profiled_steps))
    if run.early_stopping_patience:
        callbacks.append(EarlyStopping(run.early_stopping_patience))
    return callbacks
