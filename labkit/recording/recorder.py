"""``labkit.start_run``: record any program's training. Rows need neither TensorFlow nor Keras."""

import atexit
import json
import operator
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from labkit import home
from labkit.config.config import RECORDED_BY, recorded_by
from labkit.config.fields import argument
from labkit.errors import InputError, reason_of, short
from labkit.plurals import counted, without_secrets
from labkit.run_directory import RunDirectory, RunLock, Status, write_json_atomic
from labkit.run_directory.disk import check_writable, discard, holds_something_else
from labkit.run_directory.files import read_object
from labkit.run_directory.find import remember
from labkit.run_directory.machine import machine_recorded
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader, read_metrics, summary_of

if TYPE_CHECKING:
    from labkit.callbacks.media import MediaWriter

SECONDS_BETWEEN_STATUSES = 2.0
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,200}")
_METRIC = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
_SPLIT = re.compile(r"[A-Za-z][\w.-]{0,99}", re.ASCII)  # is the name of a file, too
_open_here: dict[Path, "Recorder"] = {}  # by the run's path; a cell of a notebook may be run again
# Words for splits, as programs write them.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
_OWN = ("split", "step", "wall_time", "seconds_per_step", "not_finite", "resumed_at_step")


def start_run(
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    total_steps: int | None = None,
    job_dir: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume_from: int | None = None,
) -> "Recorder":
    """Start to record a training of your own program, with any library or none.

    Example::

        with labkit.start_run("mine", {"learning_rate": 0.1}, total_steps=100) as run:
            for step in range(1, 101):
                run.log(step, loss=train_one_step())
                if step % 10 == 0:
                    run.log(step, split="validation", loss=..., accuracy=...)

    Args:
        name: of the run directory below ``<home>/runs``. Default: the program's name and the time.
        config: settings by name, for tables and comparisons; JSON's types, others become texts.
        total_steps: of the whole training, for its progress; steps may be fewer or more.
        job_dir: the run directory, in place of ``name``.
        overwrite: discards a run that is there.
        resume_from: goes on with the run that is there after this step; rows of later steps no longer count,
            and their predictions are removed.

    Raises InputError, with nothing written, for a name that can't be, a folder with something else, a run
    that is there without ``overwrite`` or ``resume_from``, and one that another process writes.
    """
    total_steps = None if total_steps is None else _step(total_steps, "total_steps")
    resume_from = None if resume_from is None else _step(resume_from, "resume_from")
    if not isinstance(config, Mapping | None) or not all(isinstance(key, str) for key in config or {}):
        raise InputError(f"config is {short(config)}; allowed: a mapping from names to values")
    if config is not None and resume_from is not None:
        raise InputError(
            "config is given with resume_from; a run that goes on keeps its own, so leave it out"
        )
    if argument("overwrite", overwrite, bool) and resume_from is not None:
        raise InputError("overwrite is True with resume_from, which goes on with a run; give one of the two")
    try:  # JSON has no NaN and no Infinity: they become texts, too
        settings = json.loads(json.dumps(dict(config or {}), default=str), parse_constant=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"config is {short(config)}; JSON can't hold it: {error}") from None
    run = place(name, job_dir)
    if resume_from is None:
        refuse_other_contents(run, overwrite, ", or go on with it: resume_from=STEP")
    elif not run.exists():
        raise InputError(f"{run.path} holds no run to go on with; leave resume_from out")
    elif not recorded_by(run):
        raise InputError(f"{run.path} was trained by labkit; labkit resume goes on with it")
    before = run.read_status() if resume_from is not None else None
    if resume_from is not None and before is not None:
        last = max(before.step, summary_of(read_metrics(run)).last_step or 0)  # a kill leaves an older status
        if resume_from > last:
            raise InputError(f"resume_from is {resume_from}; allowed: up to {last}, the run's last step")
        total_steps = before.total_steps if total_steps is None else total_steps
    if run.path in _open_here:
        _open_here[run.path]._end("interrupted", "the same program started it again")
    try:
        return Recorder(run, settings, total_steps or 0, overwrite=overwrite, resume_from=resume_from)
    except OSError as error:
        raise InputError(f"{run.path} can't be written: {reason_of(error)}; name another place") from None


def place(name: str | None, job_dir: str | os.PathLike[str] | None = None) -> RunDirectory:
    """Return the run directory of a name, or of a path. Raises InputError for one that can't be."""
    job_dir = argument("job_dir", job_dir, os.PathLike, optional=True)
    if job_dir is not None and not home.is_local_path(str(job_dir)):
        raise InputError(f"job_dir is {short(job_dir)}; allowed: {home.LOCAL_PATH}")
    if name is not None and job_dir is not None:
        raise InputError(f"name is {short(name)} with a job_dir; give one of the two")
    if name is None:
        program = os.path.splitext(os.path.basename(sys.argv[0]))[0]
        program = "notebook" if "ipykernel" in program else program if program.isidentifier() else "run"
        name = f"{program}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"the name is {short(name)}; allowed: up to 200 characters without slashes that don't begin "
            "with a dot; job_dir takes a path"
        )
    run = RunDirectory(home.runs_home() / name if job_dir is None else home.expanded(job_dir))
    check_writable(run.path, "job_dir")
    return run


def refuse_other_contents(run: RunDirectory, overwrite: bool, more: str = "") -> None:
    """Raise InputError if a directory holds a run that nobody said to discard, or something else."""
    if run.exists() and not overwrite:
        raise InputError(
            f"{run.path} holds a run; choose another name, or discard that run with overwrite{more}"
        )
    if not run.exists() and holds_something_else(run):
        raise InputError(f"{run.path} is neither empty nor a run; name another directory")


def opened(run: RunDirectory, overwrite: bool) -> RunLock:
    """Make a run directory and return its lock, which is taken; ``overwrite`` discards the run that is there.

    Raises InputError if another process writes it.
    """
    already = run.exists()
    run.create()
    lock = RunLock(run)
    if not lock.acquire():
        raise InputError(f"{run.path} is being written by another process; name another directory")
    if overwrite and already:
        discard(run)
    return lock


def _discard_predictions(run: RunDirectory, after: int) -> None:
    for path in run.predictions_path.glob("*.json"):
        step = read_object(path).get("checkpoint_step")
        if isinstance(step, int) and step > after:
            path.with_suffix(".npz").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


class Recorder:
    """Writes a run directory while another program trains; see ``start_run``.

    Every row is on its way to the disk when its call returns, so that a kill takes none of them back. A disk
    that refuses rows, media or predictions ends no training: they are left out, with a warning and a line in
    the run's status.
    Use it in a ``with`` block, whose end without an error is ``finish``, or call that. Without either, the
    end of the program decides: before ``total_steps`` the run is interrupted.

    Attributes:
        path: the run directory.
    """

    def __init__(
        self,
        run: RunDirectory,
        settings: Mapping[str, Any],
        total_steps: int,
        *,
        overwrite: bool,
        resume_from: int | None,
    ) -> None:
        self.path, self._run = run.path, run
        self._lock = opened(run, overwrite)
        # Rows up to the step of a resume are there.
        self._steps: dict[str, int] = {} if resume_from is None else {"train": resume_from}
        self._last_time: float | None = None
        self._rows = MetricsWriter(run.metrics_path)
        if resume_from is not None:
            self._rows.mark_resume_point(resume_from)
            _discard_predictions(run, after=resume_from)
        else:
            write_json_atomic(run.config_path, {RECORDED_BY: "labkit.start_run", "settings": settings})
        versions = {"versions": {"python": sys.version.split()[0]}, "command": without_secrets(sys.argv)}
        write_json_atomic(run.environment_path, versions)
        self._reader = MetricsReader(run.metrics_path)
        self._media: MediaWriter | None = None
        self._missing = 0
        self._older_error = getattr(sys, "last_value", None)  # of a cell before, in a notebook
        self._problem = ""
        now, self._first_step = time.time(), resume_from or 0
        self._status = Status(
            "running", self._first_step, total_steps, now, now, pid=os.getpid(), host=socket.gethostname()
        )
        self._status_lock, self._over = threading.Lock(), threading.Event()
        self._write_status()
        remember(run)
        self._open = ExitStack()
        self._open.enter_context(machine_recorded(run))
        self._thread = threading.Thread(target=self._beat, name="labkit-recorder", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)
        _open_here[self.path] = self

    # ---- what is recorded

    def log(self, step: int, /, *, split: str = "train", **metrics: Any) -> None:
        """Record numbers of a step.

        Args:
            step: completed steps, larger than that of the last row of this split.
            split: ``train`` for a training step; ``validation`` (or ``val``), ``test`` or another name for an
                evaluation.
            **metrics: numbers by name, also scalars of NumPy, PyTorch and TensorFlow. ``loss``, ``accuracy``
                (0 to 1), ``learning_rate`` and ``examples_per_second`` have charts of their own. NaN and
                Infinity are recorded as such.

        Raises InputError for a step that isn't larger, a value that isn't one number, and after ``finish``.
        """
        self._check_open()
        step = _step(step)
        split = split_named(split)
        if step <= self._steps.get(split, -1):
            raise InputError(
                f"step {step} comes after step {self._steps[split]} of {split}; steps of a split only grow"
            )
        now = time.time()
        row: dict[str, Any] = {"split": split, "step": step}
        for name, value in metrics.items():
            row[name] = value if type(value) is float else _number(name, value)
            # A mean in float32 may be a little over 1.
            if name == "accuracy" and (row[name] < 0 or row[name] > 1.001):
                raise InputError(
                    f"accuracy is {short(value)}; allowed: 0 to 1; divide percents by 100, or rename it"
                )
            if name in _OWN or not _METRIC.fullmatch(name):
                raise InputError(
                    f"a metric is named {short(name)}; rename it; allowed: up to 100 characters, but not "
                    f"{', '.join(_OWN)}, which rows have already"
                )
        if split == "train":
            before, last = self._last_time, self._steps.get(split)
            if before is not None and last is not None:
                row["seconds_per_step"] = max(0.0, now - before) / (step - last)
            self._last_time = now
        row["wall_time"] = now
        self.reached(step)
        self._steps[split] = step
        self._append(row)

    def reached(self, step: int, total_steps: int | None = None) -> None:
        """Say that a step is done, without a row; and how many there will be, once that is known."""
        before = self._status
        total = before.total_steps if total_steps is None else _step(total_steps, "total_steps")
        self._status = replace(before, step=max(before.step, _step(step)), total_steps=total)

    def log_image(self, step: int, name: str, image: Any) -> None:
        """Keep an image: uint8, or float from 0 to 1, [height, width] or [height, width, 1 or 3]."""
        self._medium("image", step, name, image)

    def log_figure(self, step: int, name: str, figure: Any) -> None:
        """Keep a figure of Matplotlib."""
        self._medium("figure", step, name, figure)

    def log_histogram(self, step: int, name: str, values: Any) -> None:
        """Keep a histogram of an array's finite values."""
        self._medium("histogram", step, name, values)

    def log_text(self, step: int, name: str, text: str) -> None:
        """Keep a text of up to 64 KiB."""
        self._medium("text", step, name, text)

    def predictions(
        self,
        split: str,
        images: Any,
        labels: Any,
        probabilities: Any,
        *,
        classes: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Record what the network says of a split, for the page Predictions; return the metrics.

        The row of the metrics is that of the newest step. A second call for the split replaces the first.

        Args:
            split: ``validation``, ``test`` or another name.
            images: uint8 [n, height, width, 1 or 3].
            labels: whole numbers [n], from 0 to the number of classes - 1.
            probabilities: [n, classes], each row with the sum 1.
            classes: their names. Default: class 0, class 1, …

        Raises InputError for arrays that don't fit together.
        """
        from labkit.recording.evaluations import checked_evaluation
        from labkit.training.recorded_predictions import record_predictions

        self._check_open()
        split, step = split_named(split), self._status.step
        evaluation = checked_evaluation(images, labels, probabilities, classes)
        row: dict[str, Any] = {"split": split, "step": step, **evaluation.metrics}
        if self._steps.get(split, -1) < step:
            self.log(step, split=split, **evaluation.metrics)
        elif split != "train":  # of several rows of a step, the last one counts
            self._append(row | {"wall_time": time.time()})
        row["checkpoint_step"] = step
        with self._written():
            record_predictions(self._run, split, evaluation.arrays, row, evaluation.classes)
        return dict(evaluation.metrics)

    # ---- its end

    def finish(self, message: str = "") -> None:
        """End the run as finished. A second call changes nothing."""
        self._end("finished", message)

    def fail(self, message: str) -> None:
        """End the run as failed, with a line that says why."""
        self._end("failed", message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(*_reason_of(error))

    def _end(self, state: str, message: str) -> None:
        if self._over.is_set() or os.getpid() != self._status.pid:  # a process that was forked off
            return
        self._over.set()
        _open_here.pop(self.path, None)
        atexit.unregister(self._at_exit)
        self._thread.join(5.0)
        self._open.close()
        self._status = replace(self._status, state=state, message=message or self._problem)
        self._write_status()
        self._rows.close()
        self._lock.release()

    def _at_exit(self) -> None:
        step, total = self._status.step, self._status.total_steps
        error = getattr(sys, "last_value", None)
        error = None if error is self._older_error else error
        if error is None and step < total:
            self._end("interrupted", f"the program ended after step {step} of {total}")
        else:
            self._end(*_reason_of(error))

    # ---- how it is written

    def _check_open(self) -> None:
        if self._over.is_set():
            raise InputError(f"the run {self._run.name} has ended; labkit.start_run starts another one")
        if os.getpid() != self._status.pid:
            raise InputError(
                f"the run {self._run.name} is recorded in process {self._status.pid}, and this is its fork"
            )

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Go on where the disk refuses what is written within the block; count it, and say it once."""
        try:
            yield
        except OSError as error:
            self._missing += 1
            self._problem = f"{counted(self._missing, 'record')} couldn't be written: {reason_of(error)}"
            if self._missing == 1:
                warnings.warn(f"{self.path}: {self._problem}; the training goes on", stacklevel=5)

    def _append(self, row: Mapping[str, Any]) -> None:
        with self._written():
            self._rows.append([row])

    def _medium(self, kind: str, step: int, name: str, value: Any) -> None:
        from labkit.callbacks.media import MediaWriter

        self._check_open()
        step = _step(step)
        with self._written():
            self._media = self._media or MediaWriter(self._run, lambda summary, step: None)
            getattr(self._media, kind)(name, step, value)

    def _beat(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_STATUSES):
            self._write_status()

    def _write_status(self) -> None:
        with self._status_lock, suppress(OSError):
            self._reader.poll()
            metrics = summary_of(self._reader).to_json()
            message = self._status.message or self._problem
            told = replace(self._status, heartbeat=time.time(), metrics=metrics, message=message)
            left, made = told.total_steps - told.step, told.step - self._first_step
            if told.state == "running" and left > 0 and made > 0:
                told = replace(told, eta_seconds=(told.heartbeat - told.started) / made * left)
            self._run.write_status(told)


def split_named(split: Any) -> str:
    """Return a split by the word that pages know it by. Raises InputError for what is no name."""
    if not isinstance(split, str) or not _SPLIT.fullmatch(split):
        raise InputError(f"split is {short(split)}; allowed: a name such as 'train' or 'validation'")
    return SPLITS.get(split.lower(), split)


def _step(step: Any, name: str = "step") -> int:
    try:
        found = operator.index(step)
    except TypeError:
        found = -1
    if isinstance(step, bool) or not 0 <= found < 2**53:
        raise InputError(f"{name} is {short(step)}; allowed: a whole number of at least 0")
    return found


def _number(name: str, value: Any) -> float:
    """Return the number that a metric's value is."""
    if type(value) is int and abs(value) < 2**53:
        return value
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        if not hasattr(value, "item") and callable(array := getattr(value, "numpy", None)):
            value = array()  # TensorFlow's tensors of one number are no float unless they have no axis
        item = getattr(value, "item", None)  # PyTorch warns of float() of a tensor that has gradients
        return float(item() if callable(item) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name} is {short(value)}; allowed: a number, or an array of one") from None


def _reason_of(error: BaseException | None) -> tuple[str, str]:
    """Return the state in which an error leaves a run, and a line that says why."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished", ""
    line = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return ("interrupted", "stopped by Ctrl-C") if isinstance(error, KeyboardInterrupt) else ("failed", line)
