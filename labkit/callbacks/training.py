"""``Training``: what a callback sees of the run that trains, and what it may ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from labkit.config import Config
from labkit.run_directory import RunDirectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labkit.tensorboard.events import EventWriter

__all__ = ["Requests", "Training"]


@dataclass
class Requests:
    """What callbacks have asked for and the train loop hasn't done yet. ``stop``: the reason, or empty."""

    stop: str = ""
    validation: bool = False
    checkpoint: bool = False


class Training:
    """A read-only view of a run while it trains.

    Attributes:
        run: the run directory.
        network: labkit's own, with model, optimizer and compiled steps. Its parts may change between
            versions of labkit.
        keep_state: ``keep_state(folder, checkpoint, step)`` saves a state of the run, and returns its place.
        row: the metrics row of the last step; empty before the first.
        observation: what an inspected step showed (``labkit.inspection.observation.Observation``); None after
            other steps.
    """

    def __init__(self, network: Any, run: RunDirectory, keep_state: Callable[..., Path]) -> None:
        self.network, self.run, self.keep_state = network, run, keep_state
        self.row: Mapping[str, Any] = MappingProxyType({})
        self.observation: Any = None  # set by the train loop before ``after_step``
        self.requests = Requests()
        self._step = self._first_step = 0
        self._events: EventWriter | None = None

    @property
    def step(self) -> int:
        """Completed steps of the run."""
        return self._step

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, if nothing stops it earlier."""
        return self.config.run.train_steps

    @property
    def steps_per_epoch(self) -> float:
        """Training examples divided by the global batch size; rarely a whole number."""
        return self.network.steps_per_epoch

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.network.config

    def rows(self, split: str = "train") -> list[dict[str, Any]]:
        """Return the metrics rows of ``split`` that are written so far, those of earlier processes included.

        Rows of steps that the run makes again after a resume aren't among them.
        """
        from labkit.run_directory.reader import read_metrics

        reader = read_metrics(self.run)
        return [row for row in reader.split(split) if row["step"] <= self._step]

    def weights(self) -> "dict[str, NDArray[np.float32]]":
        """Return a copy of each weight by its path, such as ``stage1_block1_conv1/kernel``."""
        return {weight.path: weight.value.numpy() for weight in self.network.model.weights}

    def logits(self, images: "NDArray[np.uint8]") -> "NDArray[np.float32]":
        """Return the logits [n, num_classes] of the current weights, not of their average.

        Args:
            images: pixels, uint8 [n, height, width, channels].
        """
        from labkit.data.network_input.tensors import as_input

        inputs = as_input(images, self.network.manifest, self.network.network_input)
        return self.network.model(inputs, training=False).numpy()

    # ---- what a callback may ask for -----------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """End the training after this step, as finished: validated, saved and tested. ``reason``: a line.

        In an asynchronous cluster, the steps that are under way end first. That also holds for the other
        requests.
        """
        self.requests.stop = self.requests.stop or " ".join(str(reason).split()) or "a callback asked for it"

    def request_validation(self) -> None:
        """Validate after this step."""
        self.requests.validation = True

    def request_checkpoint(self) -> None:
        """Save a checkpoint after this step."""
        self.requests.checkpoint = True

    def advance(self, row: Mapping[str, Any]) -> None:
        """Called by the train loop after a step."""
        self._step, self.row = row["step"], MappingProxyType(dict(row))

    def begin_at(self, step: int) -> None:
        """Called by the train loop before the first step of this process."""
        self._step = self._first_step = step

    @property
    def events(self) -> "EventWriter":
        """Writer of labkit's own callbacks, into ``events/extras``: TensorBoard follows one in a folder."""
        if self._events is None:
            from labkit.tensorboard.events import EventWriter

            self._events = EventWriter(self.run.events_path / "extras", self._first_step + 1)
        return self._events

    def close(self) -> None:
        """Called by the train loop at the end."""
        if self._events is not None:
            self._events.close()
            self._events = None
