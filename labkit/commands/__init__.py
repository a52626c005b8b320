"""Commands of ``labkit``, one module each: an ``ACTION`` with its flags and what it does."""

from labkit.actions import Action
from labkit.commands import compare, export, models, profile

__all__ = ["ACTIONS"]

ACTIONS: tuple[Action, ...] = (models.ACTION, compare.ACTION, profile.ACTION, export.ACTION)
