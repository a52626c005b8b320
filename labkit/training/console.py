"""Console output of a training: plain lines and a progress bar, in a terminal or a notebook."""

import math
import os
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.callbacks.callback import Callback, TrainingView
from labkit.config.run import Triggers
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_run_file
from labkit.run_directory.metrics import metrics_in_words, result_in_words
from labkit.run_directory.reader import read_metrics

if TYPE_CHECKING:
    from labkit.training.evaluate import Evaluation
    from labkit.training.network import Network
    from labkit.training.telemetry import Pace


SECONDS_TO_EXPECTATION = 3.0  # after which the first steps tell how long the run takes


def format_duration(seconds: float | None) -> str:
    """Return a duration such as ``1:02:03`` or ``2:03``; ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def step_line(row: dict[str, Any], total_steps: int, average: float | None, eta_seconds: float | None) -> str:
    """Return the console line of a training step. Examples per second count all replicas."""
    return (
        f"step {row['step']}/{total_steps}  epoch {row['epoch']:.2f}  loss {row['loss']:.4f}  "
        f"{result_in_words(row, 3)}  learning_rate {row['learning_rate']:.5g}  "
        f"examples/s {row['examples_per_second']:.0f} (average {average or row['examples_per_second']:.0f})  "
        f"s/batch {row['seconds_per_step']:.3f}  input wait {row['input_wait_fraction']:.1%}  "
        f"ETA {format_duration(eta_seconds)}"
    )


class Console:
    """Prints lines, appends them to ``out.log``, and shows the progress of the run.

    Args:
        log_path: file to which every line is appended with its time, or None.
    """

    def __init__(self, log_path: Path | None = None) -> None:
        # Line-buffered, and tolerant of undecodable paths: logging must never end a run.
        self._log = (
            open_run_file(log_path, "a", buffering=1, encoding="utf-8", errors="backslashreplace")
            if log_path
            else None
        )
        self._bar: Any = None
        shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
        self._notebook = shell is not None and hasattr(shell, "kernel")

    def line(self, text: str) -> None:
        """Print one line. If the reader has gone (a closed terminal, ``| head``), the run continues."""
        text = text.encode("utf-8", "backslashreplace").decode()
        if self._log:
            try:
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
            except OSError:  # the disk is full: the run says so where it can't do without
                self._drop_log()
        try:
            if self._bar is not None and not self._notebook:
                self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
            else:
                print(text, flush=True)
        except OSError:
            self._bar = None
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def start_progress(self, completed: int, total: int) -> None:
        """Show a progress bar from now on, in a terminal or a notebook."""
        if self._notebook:
            self._bar = _NotebookBar(completed, total)
        elif sys.stdout.isatty():
            self._bar = _terminal_bar(completed, total)

    def progress(self, completed: int, text: str, loss: float | None = None) -> None:
        """Update the bar. A notebook also plots the loss curve."""
        if self._bar is None:
            return
        if self._notebook:
            self._bar.update(completed, text, loss)
        else:
            self._bar.update(self._bar.task_ids[0], completed=completed, text=text)

    def stop_progress(self) -> None:
        """Stop updating the bar, and leave its last state visible."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def close(self) -> None:
        self.stop_progress()
        self._drop_log()

    def _drop_log(self) -> None:
        log, self._log = self._log, None
        if log:
            with suppress(OSError):  # of a line that the disk has refused
                log.close()


def losses_in_words(row: Mapping[str, Any]) -> str:
    """Return loss and result of a training step. A loss that diverges has any number of digits."""
    loss = row["loss"]
    return f"loss {loss:{'.3f' if abs(loss) < 1e5 else '.3g'}} {result_in_words(row, 3)}"


def evaluation_lines(evaluation: "Evaluation", step: int, augmentation: str) -> list[str]:
    """Return the console lines of an evaluation; ``augmentation``: that of the test."""
    lines = [
        f"{evaluation.split} at step {step}: {metrics_in_words(evaluation.metrics)}  "
        f"({counted(evaluation.examples, 'example')} in {format_duration(evaluation.seconds)})"
    ]
    if evaluation.augmented is not None:
        lines.append(
            f"{evaluation.split} with --test-time-augmentation {augmentation}: "
            f"{result_in_words(evaluation.augmented.metrics)}"
        )
    return lines


class Progress(Callback):
    """Prints a line every ``every_steps`` steps or ``every_seconds``, and moves the progress bar.

    After the first seconds of training it prints the expected time of all steps and evaluations.
    """

    def __init__(
        self, console: Console, pace: "Pace", every_steps: int, every_seconds: float | None = None
    ) -> None:
        self._console, self._pace = console, pace
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._is_expected = False

    def on_start(self, training: TrainingView) -> None:
        self._console.start_progress(training.step, training.total_steps)
        self._shown = self._started = time.monotonic()

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        step, total_steps = row["step"], training.total_steps
        self._console.progress(step, losses_in_words(row), row["loss"])
        eta, now = self._pace.seconds_left(step), time.monotonic()
        if eta is not None and not self._is_expected and now - self._started > SECONDS_TO_EXPECTATION:
            self._is_expected = True
            if eta > SECONDS_TO_EXPECTATION:
                self._console.line(f"expected time left: {format_duration(eta)}, with all evaluations")
        is_overdue = self._every_seconds is not None and now - self._shown >= self._every_seconds
        if step % self._every_steps and step != total_steps and not is_overdue:
            return
        self._shown = now
        lap = self._pace.lap() or {}
        average = self._pace.average_examples_per_second()
        self._console.line(step_line({**row, **lap}, total_steps, average, eta))

    def on_end(self, training: TrainingView, state: str) -> None:
        self._console.stop_progress()


def _terminal_bar(completed: int, total: int) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    bar.add_task("training", total=total, completed=completed, text="")
    bar.start()
    return bar


class _NotebookBar:
    """A notebook output that is updated in place; a saved notebook keeps its last state.

    It shows a bar, a line of text and, if losses are given, their curve as SVG, without scripts or widgets.
    """

    SECONDS_BETWEEN_UPDATES = 0.5
    MAX_POINTS = 400
    WIDTH, HEIGHT = 480, 90

    def __init__(self, completed: int, total: int) -> None:
        from IPython.display import display

        self._total = total
        self._state = (completed, "")
        self._losses: list[tuple[int, float]] = []
        self._keep_every = 1
        self._shown = time.monotonic()
        self._handle = display(self._render(), raw=True, display_id=True)

    def _render(self) -> dict[str, str]:
        from html import escape

        completed, text = self._state
        share = completed / self._total
        line = f"{completed}/{self._total} steps ({share:.0%})  {text}".rstrip()
        bar = (
            "<div style='background:#8883;border-radius:4px;height:10px;max-width:480px'>"
            f"<div style='background:#0072b2;border-radius:4px;height:10px;width:{share:.2%}'>"
            "</div></div>"
        )
        html = f"{bar}<code>{escape(line)}</code>{self._curve()}"
        return {"text/plain": line, "text/html": html}

    def _curve(self) -> str:
        """Return the loss curve; the axes go from step 0 to the last and from 0 to the highest loss."""
        if len(self._losses) < 2:
            return ""
        highest = max(loss for _, loss in self._losses) or 1.0
        top = f"{highest:{'.2f' if highest < 1e5 else '.3g'}}"
        points = " ".join(
            f"{self.WIDTH * step / self._total:.1f},{self.HEIGHT * (1 - loss / highest):.1f}"
            for step, loss in self._losses
        )
        return (
            f"<svg viewBox='0 0 {self.WIDTH} {self.HEIGHT + 14}' style='display:block;max-width:480px' "
            f"role='img' aria-label='training loss'><polyline points='{points}' fill='none' stroke='#0072b2' "
            f"stroke-width='1.5'/><line x1='0' x2='{self.WIDTH}' y1='{self.HEIGHT}' y2='{self.HEIGHT}' "
            f"stroke='#8888'/><text x='{self.WIDTH}' y='{self.HEIGHT + 12}' font-size='10' fill='#888' "
            f"text-anchor='end'>training loss, 0 to {top}, steps 0 to {self._total}</text></svg>"
        )

    def update(self, completed: int, text: str, loss: float | None = None) -> None:
        self._state = (completed, text)
        if loss is not None and math.isfinite(loss) and completed % self._keep_every == 0:
            self._losses.append((completed, loss))
            if len(self._losses) > self.MAX_POINTS:
                self._losses = self._losses[1::2]
                self._keep_every *= 2
        if time.monotonic() - self._shown >= self.SECONDS_BETWEEN_UPDATES:
            self._shown = time.monotonic()
            self._handle.update(self._render(), raw=True)

    def stop(self) -> None:
        self._handle.update(self._render(), raw=True)


def lines_at_start(network: "Network", run: RunDirectory, step: int, *, resumed: bool) -> list[str]:
    """Return the first lines of a session: run directory, network, devices, data, likely problems."""
    from labkit.models.layers import norms_of
    from labkit.training.objective import note_of_negative_loss

    config, manifest, devices = network.config, network.manifest, network.devices
    total_steps = config.run.train_steps
    lines = [devices.banner] if devices.banner else []
    counts = ", ".join(f"{manifest.count(name):,} {name}" for name in manifest.splits)
    lines.append(f"run {run.path}")
    lines.append(
        f"{network.model.name}, {network.num_parameters():,} parameters, "
        f"on {devices.describe()}; {manifest.dataset}: {counts}"
    )
    triggers = Triggers(config.run, network.steps_per_epoch, manifest.count("validation") > 0)
    validations = triggers.validations_until(total_steps) - triggers.validations_until(step)
    lines.append(
        f"{counted(total_steps - step, 'step')} of {counted(config.data.images_per_step, 'example')}, "
        f"{(total_steps - step) / network.steps_per_epoch:.3g} epochs, {counted(validations, 'validation')}"
        f"{', a test at the end' if config.run.evaluate_test and manifest.count('test') else ''}"
    )
    decay = max((norm.decay for norm in norms_of(network.model).values()), default=0.0)
    initial_share = decay**total_steps
    if not decay or config.transfer.start_from is not None:
        pass
    elif config.model.batch_norm_decay is None:
        lines.append(f"batch normalization: the decay of the moving averages grows from 0.1 to {decay:g}")
    elif initial_share > 0.05:
        advice = "use about 0.9 for short runs" if decay > 0.9 else "lower the decay, or train longer"
        lines.append(
            f"note: with --batch-norm-decay {decay:g}, {initial_share:.0%} of the moving averages are still "
            f"initial values after {counted(total_steps, 'step')}; expect validation and test accuracy far "
            f"below training accuracy, or {advice}"
        )
    if config.data.image_sizes:
        whole = math.ceil(config.data.image_sizes[-1][1] * total_steps)
        if step < whole:
            lines.append(
                f"note: --progressive-resizing makes training images smaller until step {whole:,}; "
                "evaluations use whole images and can stay near guessing until then"
            )
    if devices.asynchronous_workers > 1:
        guessing = network.loss.chance(manifest.num_classes)
        lines.append(
            f"note: gradients of {devices.asynchronous_workers} asynchronous workers are some updates old; "
            f"if the loss stays near that of guessing{'' if math.isnan(guessing) else f', {guessing:.2f}'}, "
            "lower --learning-rate or --momentum"
        )
    lines += note_of_negative_loss(config, network.loss, manifest)
    if network.freezing:
        count = network.trained_parameters(step)
        lines.append(f"{network.freezing.describe(total_steps)}; {count:,} weights are trained now")
    if resumed:
        lines.append(f"continuing from step {step} of {total_steps}")
        reader = read_metrics(run)
        recorded = int(reader.train.view().columns["step"].max(initial=0))
        if recorded < step:
            lost = f"step {step}" if recorded == step - 1 else f"steps {recorded + 1} to {step}"
            lines.append(
                f"note: {run.metrics_path} has lost the rows of {lost}; restore the file from a copy"
            )
    return lines


def note_of_new_averages(network: "Network", loaded: Collection[str]) -> list[str]:
    """Return a line if batch normalization that --start-from didn't load will keep its initial averages long.

    Their decay doesn't grow from 0.1 in such a run, because averages that were loaded stay.
    """
    from labkit.models.initial_weights import weights_by_name
    from labkit.models.layers import norms_of

    names = {id(weight): name for name, weight in weights_by_name(network.model).items()}
    new = {
        name: norm.decay
        for name, norm in norms_of(network.model).items()
        if names[id(norm.moving_mean)] not in loaded
    }
    steps = network.config.run.train_steps
    share = max(new.values(), default=0.0) ** steps
    if share <= 0.05:
        return []
    return [
        f"note: the moving averages of {listed(list(new), 3)} are new, and {share:.0%} of them are still "
        f"initial values after {counted(steps, 'step')}; expect validation and test accuracy below training "
        "accuracy, or give --batch-norm-decay 0.9"
    ]


def compile_messages(network: "Network", step: int) -> dict[str, str]:
    """Return why the step after ``step`` has to compile, or an empty dict if it doesn't.

    A change of the trained layers or of the image size needs a new compilation, as does the first inspected
    step. Each key describes a change in a few words, its value in a full line.
    """
    messages = {}
    stage = network.freezing.thaws_at(step)
    if stage is not None:
        count = network.trained_parameters(step)
        messages[f"{stage} thaws"] = f"{stage} thaws after step {step}: {count:,} weights are trained"
    if step > 0 and network.image_size_at(step) != network.image_size_at(step - 1):
        side = network.image_size_at(step)
        height, width = (side, side) if side else network.input_shape[:2]
        images = f"images of {height} x {width} pixels"
        messages[images] = f"{images} from step {step + 1} on"
    if network.is_inspected(step) and not network.train_step_at(step).experimental_get_tracing_count():
        messages["inspection"] = f"step {step + 1} is inspected; this step is compiled anew"
    return messages
