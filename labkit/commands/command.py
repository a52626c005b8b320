"""What a command of ``labkit`` is: flags and what to do with them, or a group of such commands."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command", "CommandGroup"]


@dataclass(frozen=True)
class Command:
    """One command. Where it takes a training, ``run`` gets its configuration and ``--overwrite`` too.

    One that ``computes`` does so in its own process, for long enough that the allocator matters.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[..., int]
    takes_training: bool = False
    computes: bool = False


@dataclass(frozen=True)
class CommandGroup:
    """A command that is several, such as ``labkit data``, which does nothing but show its help."""

    name: str
    help: str
    commands: tuple[Command, ...]
