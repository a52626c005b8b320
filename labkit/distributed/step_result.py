"""What an engine reports of one training step."""

from dataclasses import dataclass
from typing import Any

from labkit.run_directory.worker_metrics import StepSpans

__all__ = ["StepResult"]


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
