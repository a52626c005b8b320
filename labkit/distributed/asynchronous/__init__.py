"""Asynchronous training: steps on the workers of a parameter-server cluster, without synchronization."""

from labkit.distributed.asynchronous.attempts import Attempt, Attempts
from labkit.distributed.asynchronous.engine import AsynchronousEngine, WorkerStuck
from labkit.distributed.asynchronous.step import make_asynchronous_step

__all__ = ["AsynchronousEngine", "Attempt", "Attempts", "WorkerStuck", "make_asynchronous_step"]
