"""What an engine runs the training with, and what it reports of one step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from labkit.run_directory.worker_metrics import StepSpans

__all__ = ["StepResult", "Steps"]


@dataclass(frozen=True)
class Steps:
    """The steps of a training, for its engine. Each function takes the number of steps before the one meant.

    ``strategy``: that they are compiled for. ``num_workers``: how many processes compute gradients.
    ``compiled_at`` and ``learning_rate_at`` return the step itself and its learning rate;
    ``exchanged_bytes_at`` how much each synchronous worker sends and receives in it. ``named`` returns the
    metrics of a step by their keys in a metrics row, ``observation`` what an inspected step showed.
    ``updates``: the variable that counts the updates of the weights.
    """

    strategy: tf.distribute.Strategy
    num_workers: int
    compiled_at: Callable[[int], Callable[..., Any]]
    learning_rate_at: Callable[[int], float]
    exchanged_bytes_at: Callable[[int], float]
    named: Callable[[list[float]], dict[str, float]]
    observation: Callable[..., Any]
    updates: tf.Variable


@dataclass(frozen=True)
class StepResult:
    """One completed training step.

    ``step`` counts completed steps, in the order in which they ended. ``metrics`` of its batch have the keys
    of a metrics row: ``loss``, ``accuracy``, and what the loss adds. ``seconds`` of wall time that the step
    accounts for, of which ``waited`` for the input. ``worker`` made it: ``worker_seconds`` from its batch to
    its end, of which ``exchanged`` between devices or processes (NaN where that isn't measured);
    ``bytes_sent`` and ``bytes_received`` by the worker, to and from other processes. ``staleness``: updates
    by other workers between its read of the weights and its update; None in synchronous training.
    ``observation``: of an inspected step, a ``labkit.inspection.observation.Observation``; None of others.
    ``spans``: when the worker did what.
    """

    step: int
    metrics: dict[str, float]
    learning_rate: float
    seconds: float
    waited: float
    exchanged: float
    worker: str
    worker_seconds: float
    bytes_sent: float = 0.0
    bytes_received: float = 0.0
    staleness: int | None = None
    observation: Any | None = None
    spans: StepSpans | None = None
