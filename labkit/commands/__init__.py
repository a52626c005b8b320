"""Commands of ``labkit``, one module each: a ``COMMAND`` with its flags and what it does."""

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
from labkit.commands.command import Command, CommandGroup

__all__ = ["COMMANDS"]

# In the order of the help.
COMMANDS: tuple[Command | CommandGroup, ...] = (
    data.COMMAND,
    train.COMMAND,
    evaluate.COMMAND,
    runs.COMMAND,
    models.COMMAND,
    compare.COMMAND,
    profile.COMMAND,
    export.COMMAND,
    cluster.COMMAND,
    doctor.COMMAND,
    demo.COMMAND,
)
