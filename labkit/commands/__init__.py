"""Commands of ``labkit``, one module each: an ``ACTION`` with its flags and what it does."""

from labkit.actions import Action, ActionGroup
from labkit.commands import (
    cluster,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    models,
    profile,
    runs,
    train,
)

__all__ = ["ACTIONS"]

# In the order of the help.
ACTIONS: tuple[Action | ActionGroup, ...] = (
    data.ACTION,
    train.ACTION,
    evaluate.ACTION,
    runs.ACTION,
    models.ACTION,
    compare.ACTION,
    profile.ACTION,
    export.ACTION,
    cluster.ACTION,
    doctor.ACTION,
    demo.ACTION,
)
