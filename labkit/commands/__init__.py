"""Commands of ``labkit``, one module each: an ``ACTION`` with its flags and what it does."""

from labkit.actions import Action

__all__ = ["ACTIONS"]

ACTIONS: tuple[Action, ...] = ()
