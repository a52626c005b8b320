"""Write what inspected steps show: to ``layers.jsonl``, and as histograms for TensorBoard."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.callbacks.callback import Callback
from labkit.callbacks.training import Training
from labkit.run_directory.layers import DISTRIBUTIONS
from labkit.run_directory.metrics import MetricsWriter

if TYPE_CHECKING:
    from labkit.inspection.observation import Observation

__all__ = ["Inspect"]


class Inspect(Callback):
    """Writes the observation of each inspected step (``--inspect-every-steps``).

    One line of ``layers.jsonl`` (``docs/run-directory.md``), and for TensorBoard the histograms
    ``activations/<layer>``, ``gradients/<weight>`` and ``weights/<weight>``.
    """

    def __init__(self) -> None:
        self._writer: MetricsWriter | None = None

    def on_start(self, training: Training) -> None:
        self._writer = MetricsWriter(training.run.layers_path)

    def after_step(self, training: Training, row: Mapping[str, Any]) -> None:
        observation = training.observation
        if observation is None:
            return
        assert self._writer is not None
        self._writer.append([layers_row(observation, row)])
        _write_histograms(training, observation, row["step"])

    def on_end(self, training: Training, state: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def layers_row(observation: "Observation", row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of ``layers.jsonl`` for the step of a metrics row.

    Metrics have six digits, quantiles four.
    """
    metrics = {
        name: [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
        for name, values in observation.by_layer().items()
    }
    quantiles = {name: getattr(observation, name) for name in DISTRIBUTIONS}
    return {"step": row["step"], "wall_time": row["wall_time"], **metrics, **quantiles}


def _write_histograms(training: Training, observation: "Observation", step: int) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    from labkit.inspection.buckets import evenly_spaced

    metadata = create_summary_metadata(display_name=None, description=None)
    summary = Summary()
    for kind in ("activation", "gradient", "weight"):
        for name, counts in getattr(observation, f"{kind}_counts").items():
            buckets = evenly_spaced(counts)
            if buckets is not None:
                summary.value.add(tag=f"{kind}s/{name}", metadata=metadata, tensor=make_tensor_proto(buckets))
    training.events.summary(summary, step)
