"""``Callback``: the methods that the train loop calls; ``TrainingView``: what they see of the run.

Importing this module loads neither TensorFlow nor NumPy.
"""

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from labkit.config import Config
from labkit.config.fields import CODE, arguments_of
from labkit.errors import InputError
from labkit.parts.code import first_line, module_of, named_object
from labkit.run_directory import RunDirectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labkit.callbacks.media import MediaWriter
    from labkit.tensorboard.events import EventWriter

Metrics = Mapping[str, float] | None


class TrainingFailed(Exception):
    """Raised by a callback to end the run as failed; the message says why, in one line."""


class Callback:
    """Base class of callbacks. Override the methods that you need; the others are not called.

    Each method gets ``training``, a view of the run (``TrainingView``), through which
    it may also ask for a stop, a validation or a checkpoint. In a cluster, the methods are called on the
    chief alone. In an asynchronous one, steps end in the order in which the workers report them.

    Training waits while a method runs. An exception ends the run as failed; its checkpoints are kept.

    What a callback remembers over many steps goes into checkpoints by ``state``, and comes back by
    ``restore``.
    """

    def state(self) -> Any:
        """Return what a resumed run has to know: a value of JSON, saved in each checkpoint; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Take back what ``state`` returned at the checkpoint from which the run goes on.

        Called before ``on_start``, and not for a new run.
        """

    def on_start(self, training: "TrainingView") -> None:
        """Called once, before the first step of this process."""

    def before_step(self, training: "TrainingView", step: int) -> None:
        """Called before step ``step``, from 1. (In an asynchronous cluster its work may already run.)"""

    def after_step(self, training: "TrainingView", row: Mapping[str, Any]) -> Metrics:
        """Called after each step, with its metrics row.

        Returns metrics to add to the row: numbers by name; None for none. A name consists of letters, digits,
        ``_``, ``.``, ``-`` and ``/``, begins with a letter, and differs from the names in the row.
        """
        return None

    def after_validation(self, training: "TrainingView", row: Mapping[str, Any]) -> Metrics:
        """Called after each validation, with its metrics row. Returns metrics to add, as ``after_step``."""
        return None

    def after_checkpoint(self, training: "TrainingView", step: int, path: Path) -> None:
        """Called after the checkpoint of ``step`` was saved in the folder ``path``."""

    def on_end(self, training: "TrainingView", state: str) -> None:
        """Called once at the end of this process's training, before the state is written.

        ``state``: ``finished``, ``interrupted`` or ``failed``.
        """


METHODS = tuple(name for name in vars(Callback) if name.startswith(("on_", "before_", "after_")))


# ---- what a callback sees


@dataclass
class Requests:
    """What callbacks have asked for and the train loop hasn't done yet. ``stop``: the reason, or empty."""

    stop: str = ""
    validation: bool = False
    checkpoint: bool = False


class TrainingView:
    """A read-only view of a run while it trains.

    Attributes:
        run: the run directory.
        network: labkit's own, with model, optimizer and compiled steps. Its parts may change between
            versions of labkit.
        keep_state: ``keep_state(folder, checkpoint, step)`` saves a state of the run, and returns its place.
        row: the metrics row of the last step; empty before the first.
        observation: what an inspected step showed (``labkit.inspection.observer.Observation``); None after
            other steps.
    """

    def __init__(
        self, network: Any, run: RunDirectory, keep_state: Callable[..., Path], step: int = 0
    ) -> None:
        self.network, self.run, self.keep_state = network, run, keep_state
        self.row: Mapping[str, Any] = MappingProxyType({})
        self.observation: Any = None  # set by the train loop before ``after_step``
        self.requests = Requests()
        self._step = self._first_step = step  # before the first one of this process
        self._events: EventWriter | None = None
        self._media: MediaWriter | None = None

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
        return self.network.model(self._as_input(images), training=False).numpy()

    def outputs(
        self, layers: str | Sequence[str], images: "NDArray[np.uint8]", step: int = 0
    ) -> "dict[str, NDArray[Any]]":
        """Return what layers give for images with the current weights, by their names.

        Args:
            layers: names or patterns, such as ``stage2_*``; ``labkit models`` shows the names.
            images: pixels, uint8 [n, height, width, channels].
            step: the training step, from 1, as in which dropout draws and these images are normalized, in one
                replica and one part; by default as in an evaluation.

        Raises InputError if no layer has such a name.
        """
        from labkit.models.variants import with_layer_outputs

        wanted = [layers] if isinstance(layers, str) else list(layers)
        model = with_layer_outputs(self.network.model)
        names = list(model.output)
        chosen = [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in wanted)]
        if not chosen:
            raise InputError(f"no layer is called {wanted!r}; the network has: {', '.join(names)}")
        with self._as_in(step, len(images)):
            found = model(self._as_input(images), training=step > 0)
        return {name: found[name].numpy() for name in chosen}

    def gradients(
        self, images: "NDArray[np.uint8]", labels: "NDArray[np.integer[Any]]", step: int = 0
    ) -> "dict[str, NDArray[Any]]":
        """Return the gradient of the mean loss for each trained weight, by its path, without weight decay.

        Args:
            images: pixels, uint8 [n, height, width, channels].
            labels: int [n], or zeros and ones [n, num_classes] where images have several.
            step: as of ``outputs``; then with the label smoothing of the training, too.
        """
        import tensorflow as tf

        weights = self.network.model.trainable_weights
        smoothing = self.config.optimizer.label_smoothing if step else 0.0
        with tf.GradientTape(watch_accessed_variables=False) as tape, self._as_in(step, len(images)):
            tape.watch([weight.value for weight in weights])
            logits = self.network.model(self._as_input(images), training=step > 0)
            loss = tf.reduce_mean(self.network.loss.of_training(tf.constant(labels), logits, smoothing))
        found = tape.gradient(
            loss,
            [weight.value for weight in weights],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return {weight.path: value.numpy() for weight, value in zip(weights, found, strict=True)}

    def batch(self, step: int = 0) -> "tuple[NDArray[np.uint8], NDArray[Any]]":
        """Return images, uint8 [n, height, width, channels], and labels of a step's batch.

        The images are augmented, as the network sees them. ``step``: from 1, such as the one that
        ``before_step`` is called with; by default the last step, before the first one the first.
        """
        from labkit.data.batch_of_step import batch_of_step

        network, seed = self.network, self.config.run.seed
        made = batch_of_step(network.manifest, self.config.data, seed=seed, step=step or max(1, self._step))
        return made.images, made.labels

    @contextmanager
    def _as_in(self, step: int, images: int) -> Iterator[None]:
        """Let the network, called for training in the block, do with images what it does in a step."""
        from labkit.models.freezing import frozen_norms
        from labkit.models.layers import dropout_draws, recorded_batch_statistics

        if step < 0 or step != int(step):
            raise InputError(f"step is {step!r}; allowed: a training step, from 1, or 0 for an evaluation")
        done = max(0, step - 1)
        held = frozen_norms(self.network.model, self.network.freezing.at(done))
        with dropout_draws(done, 0, images), recorded_batch_statistics(held):
            yield

    def _as_input(self, images: "NDArray[np.uint8]") -> Any:
        from labkit.data.network_input import as_input

        return as_input(images, self.network.manifest, self.network.network_input)

    # ---- what it may keep with the run ---------------------------------------------------------------

    def log_image(self, name: str, image: "NDArray[Any]") -> None:
        """Keep an image of this step: uint8 or float from 0 to 1, [height, width] or [height, width, 1 or 3].

        The dashboard's page Media and TensorBoard show it. Raises InputError for another array or name.
        """
        self.media.image(name, self._step, image)

    def log_figure(self, name: str, figure: Any) -> None:
        """Keep a figure of Matplotlib as an image of this step."""
        self.media.figure(name, self._step, figure)

    def log_histogram(self, name: str, values: Any) -> None:
        """Keep a histogram of numbers of any shape, in 50 parts; NaN and Infinity are counted apart."""
        self.media.histogram(name, self._step, values)

    def log_text(self, name: str, text: str) -> None:
        """Keep a text of this step, of up to 64 KiB."""
        self.media.text(name, self._step, text)

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

    @property
    def media(self) -> "MediaWriter":
        """Writes images, histograms and texts into the run, and for TensorBoard."""
        from labkit.callbacks.media import MediaWriter

        if self._media is None:
            self._media = MediaWriter(self.run, self.events.summary)
        return self._media

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


# ---- the callbacks that a user gives


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return ``callbacks`` as a tuple. Raises InputError where one isn't a ``Callback`` object."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise InputError(f"callbacks is {_name(callbacks)}; allowed: a list of labkit.Callback objects")
    for callback in callbacks:
        if isinstance(callback, type) and issubclass(callback, Callback):
            raise InputError(
                f"callbacks holds the class {callback.__name__}; allowed: objects, {callback.__name__}()"
            )
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks holds {_name(callback)}; allowed: objects of classes derived from labkit.Callback"
            )
        _check_methods(type(callback))
    return tuple(callbacks)


def _check_methods(kind: type) -> None:
    """Raise InputError for a method that looks like one of ``Callback``, and would never be called."""
    for name in set(dir(kind)) - set(METHODS):
        if name.startswith(("on_", "before_", "after_")) and callable(getattr(kind, name)):
            near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0)[0]
            raise InputError(
                f"callback {kind.__name__} has a method {name!r}; did you mean {near!r}? (only methods of "
                "labkit.Callback may begin with on_, before_ or after_)"
            )


def _name(value: Any) -> str:
    return f"an object of {type(value).__name__}"


def callbacks_of(config: Config, files: Mapping[str, bytes]) -> tuple[Callback, ...]:
    """Return the callbacks of ``--callbacks``: the list in a file, or what the class or function there makes.

    ``files``: of code, by path, as they were checked. Raises InputError where that isn't possible.
    """
    reference = config.run.callbacks
    if reference is None:
        return ()
    flag = f"--callbacks {reference}"
    found: Any
    if CODE.fullmatch(reference) is not None:
        found = _made(flag, named_object("--callbacks", reference), config.run.callback_arguments)
    else:
        names = vars(module_of("--callbacks", Path(reference), files[reference]))
        if "callbacks" not in names:
            raise InputError(f"{flag} defines no callbacks; write: callbacks = [MyCallback()]")
        found = names["callbacks"]
    try:
        return checked_callbacks(found)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from None


def _made(flag: str, found: Any, text: str | None) -> Any:
    """Return what a class or function gives, in a list; an object would keep what an earlier run left."""
    if not callable(found) or isinstance(found, Callback):
        raise InputError(
            f"{flag} is {_name(found)}; allowed: a class derived from labkit.Callback, or a function that "
            "returns one or several objects of such classes"
        )
    arguments = arguments_of(text)
    try:
        made = found(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{flag} failed, called with {arguments}: {first_line(error)}") from None
    return [made] if isinstance(made, Callback) else made
