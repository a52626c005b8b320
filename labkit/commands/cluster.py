"""``labkit cluster``: its actions, which ``labkit.cluster.commands`` holds."""

from labkit.actions import ActionGroup
from labkit.cluster.commands import ACTIONS

__all__ = ["ACTION"]

ACTION = ActionGroup("cluster", "Train with several processes, here or under a scheduler.", ACTIONS)
