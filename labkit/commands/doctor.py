"""``labkit doctor``: what this machine has."""

import argparse

from labkit.actions import Action

__all__ = ["ACTION"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: ``labkit doctor`` has no flags."""


def _run(options: argparse.Namespace) -> int:
    """Examine this machine. Returns the exit code."""
    from labkit.doctor import examine

    return examine()


ACTION = Action(
    "doctor", "Say what this machine has, and what to do about each problem.", _add_arguments, _run
)
