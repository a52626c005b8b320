"""``labkit demo``: the notebook, run once."""

import argparse

from labkit.actions import Action

__all__ = ["ACTION"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: ``labkit demo`` has no flags."""


def _run(options: argparse.Namespace) -> int:
    """Run the notebook. Returns the exit code."""
    from labkit.demo import run_demo

    return run_demo()


ACTION = Action("demo", "Run the notebook and say where to look.", _add_arguments, _run)
