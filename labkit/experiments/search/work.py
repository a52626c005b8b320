"""Work on a search: choose the next training, run it, record what it has reached, until nothing is left.

Any number of processes may do so at once, on machines that share the search's folder. They decide under the
lock of the journal. Each training is claimed by a lock, which the system frees when its holder is lost;
another process then goes on with it from its checkpoint.
"""

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config.config import flags_of
from labkit.data.recipe import requested_values
from labkit.distributed.cpu import has_no_gpu
from labkit.errors import DiskFailure, InputError
from labkit.experiments.search.board import Board, write_snapshot
from labkit.experiments.search.decide import decided, proposed, update
from labkit.experiments.search.files import ENDED, PROGRESS, Request, TrialRecord, best_trial
from labkit.experiments.search.request import TRIAL_BYTES, config_of
from labkit.experiments.search.space import with_values
from labkit.experiments.trials import Trial, TrialEnd, run_trials
from labkit.run_directory import RunDirectory, RunLock
from labkit.run_directory.disk import check_disk_space
from labkit.run_directory.files import read_object
from labkit.run_directory.machine import driver_library
from labkit.run_directory.metrics import chosen_step, own_test
from labkit.run_directory.reader import MetricsReader, read_metrics
from labkit.run_directory.rows import number
from labkit.run_directory.stop import is_free
from labkit.startup.child import EXIT_STATUS, UNTIL_SECONDS, UNTIL_STEP, python_command
from labkit.startup.process import Child
from labkit.startup.template import Template

LOOK_SECONDS = 0.5  # between two looks for work where there was none
SNAPSHOT_SECONDS = 15.0
SECONDS_TO_SAVE = 120.0
MOST_KILLS = 3  # of one training, by somebody else; then it counts as failed
TIME_IS_UP = signal.SIGALRM  # among the signals that asked to stop


def spent(reader: MetricsReader, after: int, until: int) -> float:
    """Return the seconds of a run's training steps after one, until another.

    The first step of each process compiles, and is left out.
    """
    first = {1, *(point.step + 1 for point in reader.resume_points)}
    rows = (row for row in reader.split("train") if after < row["step"] <= until)
    return sum(row["seconds_per_step"] for row in rows if row["step"] not in first)


def reached(
    run: RunDirectory, limit: tuple[int, float | None], objective: str, after: int
) -> dict[str, Any] | None:
    """Return what a run has reached at a step, or after seconds of training; None if it isn't there yet.

    ``step``: that step, or of the first validation after the seconds. ``value``: of the validation that it is
    judged by until then; None without a finite one. ``seconds``: of its training steps since the step
    ``after``. ``test``: its result on the test set, if it has one.
    """
    status = run.read_status()
    finished = status is not None and status.state == "finished"
    (step, least), newest = limit, max(run.checkpoint_steps(), default=0)
    if not finished and newest < step and (least is None or not newest):
        return None
    reader = read_metrics(run)
    if least is not None:
        validated = (row["step"] for row in reader.split("validation"))
        step = next((one for one in validated if spent(reader, 0, one) >= least), step)
        if not finished and newest < step:
            return None
    rows = [row for row in reader.split("validation") if row["step"] <= step]
    chosen = chosen_step(rows)
    value = next((row.get(objective) for row in reversed(rows) if row["step"] == chosen), None)
    test = own_test(reader.split("test"), None, ()) or {}
    return {
        "step": step,
        "value": number(value),
        "seconds": spent(reader, after, step),
        "test": test.get(objective),
    }


@dataclass(frozen=True, kw_only=True)
class Job(Trial):
    """A training until a rung. ``slot``: its place among those of this process. ``claim``: a lock on it."""

    trial: TrialRecord
    run: RunDirectory
    slot: int
    claim: RunLock


@dataclass
class Search:
    """This process's work on the search in a folder.

    ``workers``: trainings at once, which share cores and GPUs. ``patience``: seconds without a sign of life
    after which a training is killed, and has failed. ``signals``: that asked this process to stop, to which
    ``stop_signals`` adds new ones. ``say``: takes lines for people.
    """

    folder: Path
    request: Request
    workers: int
    patience: float
    signals: list[int]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.board = Board(self.folder, self.request)
        self._claims = RunDirectory(self.folder / ".claims")
        self._claims.path.mkdir(exist_ok=True)
        self._slots = list(range(self.workers))
        self._began = time.monotonic() - float(read_object(self.folder / PROGRESS).get("seconds", 0.0))
        self._jobs: list[Job] = []  # by their numbers in ``run_trials``
        self._beats: dict[int, tuple[float, float]] = {}  # last sign of life of each, and when it was seen
        self._hanging: set[int] = set()
        self._kills: Counter[str] = Counter()
        self._watch_at = self._snapshot_at = 0.0
        self._over = False
        library = driver_library()
        self._gpus = library.nvmlDeviceGetCount() if library and self.workers > 1 else 0

    @property
    def seconds(self) -> float:
        """Seconds that the search has taken, without those in which no process worked on it."""
        return time.monotonic() - self._began

    @property
    def time_is_up(self) -> bool:
        return self.request.minutes is not None and self.seconds >= 60 * self.request.minutes

    def work(self) -> None:
        """Work until nothing is left or this process is asked to stop, and record how it ends."""
        jobs = self._next_jobs()
        limits: dict[str, Any] = {"at_a_time": self.workers, "seconds_to_save": SECONDS_TO_SAVE}
        # Their file is run before TensorFlow is imported, and may decide what Keras and TensorFlow load.
        callbacks = requested_values(self.request.preset, self.request.fixed)[0].get("callbacks")
        forks = has_no_gpu() and callbacks is None
        with closing(Template(of_cluster=False)) if forks else nullcontext() as limits["template"]:
            while not self._over and not self.signals:
                self._jobs, self._beats = [], {}
                run_trials(jobs, self.signals, self._ended, meanwhile=self._watch, **limits)
                if self.signals == [TIME_IS_UP]:
                    self.signals.clear()  # the repeats are left
        self._snapshot("finished" if self._over else "interrupted")

    def _snapshot(self, state: str = "running") -> None:
        self._snapshot_at = time.monotonic() + SNAPSHOT_SECONDS
        with self.board.changing():
            write_snapshot(self.board, state, self.seconds)

    # ---- what is next ----------------------------------------------------------------------------------

    def _next_jobs(self) -> Iterator[Job | None]:
        """Yield each training that this process is to do; None while there is none, but may be one later."""
        look_at = 0.0
        while not self._over:
            job = None
            if time.monotonic() >= look_at:
                with self.board.changing():
                    job = self._next()
                look_at = time.monotonic() + LOOK_SECONDS if job is None else 0.0
            if job:
                self._jobs.append(job)
                self._slots.remove(job.slot)
                self.say(f"{job.run.name} trains; its next result is {self._place(job.trial)}")
                self._snapshot()
            yield job

    def _next(self) -> Job | None:
        """Record what follows from the results that are there, and claim a training."""
        while True:
            every = self.board.trials()
            trials = [trial for trial in every if trial.repeats is None]
            if changed := decided(self.request, trials):
                for trial in changed:
                    self.board.save(trial)
                continue
            going = [trial for trial in trials if trial.state not in ENDED]
            searches = bool(going or len(trials) < self.request.trials) and not self.time_is_up
            if not searches:
                going = [trial for trial in every if trial.repeats is not None and trial.state not in ENDED]
            going.sort(key=lambda trial: (-trial.rung, trial.number))  # those of the highest rung first
            todo = [(trial, run) for trial in going for run in trial.runs if run not in trial.parts]
            for trial, run in todo:
                job = self._claimed(trial, run)
                if job and not self._take(job):
                    self._record(job, "running", worker=f"{socket.gethostname()}, process {os.getpid()}")
                    return job
                if job:  # somebody trained it, and had no time to record it
                    job.claim.release()
                    break
            else:
                new = self._new(every, searches)
                if new is None:
                    self._over = not searches and not todo
                    return None
                self.board.add(new)

    def _new(self, every: list[TrialRecord], searches: bool) -> TrialRecord | None:
        """Return the next trial, or at the end the repeat of the best one with fresh seeds; None for none.

        It has failed if its values don't go together.
        """
        request, trials = self.request, [trial for trial in every if trial.repeats is None]
        best = None if searches else best_trial(request, trials)
        if best is None:
            values = proposed(request, trials) if searches else None
            number, rung, seeds = len(every), 0, range(request.seeds)
        else:
            done = any(trial.repeats == best.number for trial in every)
            values = best.values if request.repeats and not done else None
            number, rung = best.number, len(best.results) - 1
            seeds = range(request.seeds, request.seeds + request.repeats)
        if values is None:
            return None
        runs = [f"{number:04}-seed{seed}" for seed in seeds]
        record = TrialRecord(len(every), values, rung, runs, None if best is None else number)
        try:
            config_of(request.preset, with_values(request.fixed, values))
        except InputError as refused:
            record.state, record.why = "failed", str(refused)
        return record

    def _claimed(self, trial: TrialRecord, name: str) -> Job | None:
        """Claim a training; None where another process has it."""
        run, claim = RunDirectory(self.folder / name), RunLock(self._claims, name)
        if not claim.acquire():
            return None
        if not is_free(run):  # the training of a process that is lost is just ending
            claim.release()
            return None
        self._check_disk()
        seed = self.request.seed + int(name.rpartition("seed")[2])
        # Who chooses a trial must not have seen the test set; a single one isn't chosen.
        tests = trial.repeats is not None or not self.request.space
        own = {"seed": seed, "job_dir": str(run.path), "evaluate_test": tests}
        preset = ["--preset", self.request.preset] if self.request.preset else []
        words = ["train", *preset, *flags_of(with_values(self.request.fixed, trial.values) | own)]
        slot = self._slots[0]
        # A scheduler's exit status is the search's.
        variables = {UNTIL_STEP: "", UNTIL_SECONDS: "", EXIT_STATUS: ""}
        step, least = self.request.limit(trial.rung)
        variables[UNTIL_STEP] = str(step)
        if least is not None:
            newest = max(run.checkpoint_steps(), default=0)
            before = spent(read_metrics(run), 0, newest) if newest else 0.0
            variables[UNTIL_SECONDS] = str(least - before)
        if self._gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
            variables["CUDA_VISIBLE_DEVICES"] = str(slot % self._gpus)
        command, log = python_command("-m", "labkit", *words), run.path.with_suffix(".log")
        return Job(command, variables, log, trial=trial, run=run, slot=slot, claim=claim)

    def _check_disk(self) -> None:
        try:
            check_disk_space(self.folder, TRIAL_BYTES, "--output")
        except InputError as full:
            raise DiskFailure(f"{full}; then the same command goes on") from None

    # ---- what has come out -----------------------------------------------------------------------------

    def _record(self, job: Job, state: str, **found: Any) -> None:
        """Record what has become of a training."""
        trial = self.board.trials()[job.trial.number]
        if trial.state not in ENDED:  # as it may be by another of its seeds
            update(self.request, trial, job.run.name, {"state": state, **found})
            self.board.save(trial)

    def _take(self, job: Job) -> bool:
        """Record what a training has reached at its rung. Returns False if it isn't there yet."""
        trial, objective = job.trial, self.request.objective
        limit, before = self.request.limit(trial.rung), trial.results[-1].step if trial.results else 0
        found = reached(job.run, limit, objective, before)
        if found is None:
            return False
        if found["value"] is None:
            self._record(job, "failed", why=f"it has no finite {objective} {self._place(trial)}")
        else:
            self._record(job, "finished", at=self.seconds, **found)
            self.say(f"{job.run.name}: {objective} {found['value']:.4g} at step {found['step']}")
        return True

    def _place(self, trial: TrialRecord) -> str:
        return self.request.places[trial.rung]

    def _ended(self, number: int, end: TrialEnd) -> None:
        """Take the end of a training."""
        job = self._jobs[number]
        self._slots.append(job.slot)
        with self.board.changing():
            if not self._take(job):
                why = self._failure(number, end)
                self._record(job, "failed" if why else "paused", why=why)
                self.say(f"{job.run.name} {f'failed: {why}' if why else 'is paused'}")
            job.claim.release()
        self._snapshot()

    def _failure(self, number: int, end: TrialEnd) -> str:
        """Return why a training failed; "" if it was stopped and goes on later."""
        job = self._jobs[number]
        if self.signals or not is_free(job.run):
            return ""
        self._check_disk()
        if number in self._hanging:
            return f"no sign of life for {self.patience:g} s (--patience); it was killed"
        status = job.run.read_status()
        if status is not None and status.state == "failed":
            return status.message
        if end.reason:
            return end.reason
        if end.code < 0 or end.code >= 128:  # killed or stopped by somebody else
            self._kills[job.run.name] += 1
            if self._kills[job.run.name] < MOST_KILLS:
                return ""
        return ": ".join([str(end), *job.last_lines(1)])[:300]

    def _watch(self, running: Mapping[int, Child]) -> None:
        """Kill trainings that hang, end all where the time is up, and tell how far the search is."""
        now = time.monotonic()
        if now < self._watch_at:
            return
        self._watch_at = now + 1.0
        for place, child in running.items():
            status = self._jobs[place].run.read_status()
            beat = status.heartbeat if status else 0.0
            seen, since = self._beats.get(place, (-1.0, now))
            self._beats[place] = (beat, since if beat == seen else now)
            if beat == seen and now - since > self.patience:
                self._hanging.add(place)
                child.kill()
        searches = any(self._jobs[place].trial.repeats is None for place in running)
        if self.time_is_up and searches and not self.signals:
            self.signals.append(TIME_IS_UP)
        if now >= self._snapshot_at:
            self._snapshot()
