"""What has happened in a search: Optuna's journal, which any number of processes share, and what it tells.

``trials.json`` is a copy for readers, made after each event; at the end there is also a conclusion.
"""

import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import Trial, TrialState, create_trial

from labkit.analysis.inference import Spread, spread
from labkit.config import fields_by_name
from labkit.config.config import recorded_config
from labkit.errors import DiskFailure
from labkit.experiments.search import files
from labkit.experiments.search.decide import distributions
from labkit.experiments.search.files import (
    ENDED,
    Progress,
    Request,
    TrialRecord,
    best_trial,
    equals_of_best,
)
from labkit.experiments.search.result import SearchResult, shown
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.directory import write_text_atomic
from labkit.run_directory.disk import disk_failure
from labkit.run_directory.files import locked
from labkit.run_directory.metrics import MetricsWriter

LOCK_SECONDS = 60.0  # a decision takes milliseconds
_STATES = {"pruned": TrialState.PRUNED, "finished": TrialState.COMPLETE, "failed": TrialState.FAIL}
# Fields of the best configuration that its preset leaves to whoever uses it.
_NOT_OF_A_PRESET = ("job_dir", "data_dir", "seed", "evaluate_test", "num_gpus", "num_intra_threads")


class Board:
    """The study ``search`` in the journal of a folder.

    Its trials have the attribute ``record``, all that is known of them. Their values and states follow from
    it, for Optuna's own tools.
    """

    def __init__(self, folder: Path, request: Request) -> None:
        self.folder, self.request = folder, request
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # Optuna's own lock stays for 30 s where its holder was killed; that of ``changing`` doesn't.
        unlocked: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        with self.changing():
            storage = JournalStorage(JournalFileBackend(str(folder / files.JOURNAL), lock_obj=unlocked))
            self.study = optuna.create_study(
                storage=storage, study_name="search", direction=request.direction, load_if_exists=True
            )
            for record, trial in zip(self.trials(), self.study.get_trials(deepcopy=False), strict=True):
                if record.state in ENDED and not trial.state.is_finished():
                    self._tell(record)  # for a process that was killed before it could

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the journal: what is read is the newest, and nobody else writes. Raises DiskFailure."""
        try:
            with locked(self.folder / ".journal.lock", LOCK_SECONDS):
                MetricsWriter(self.folder / files.JOURNAL).close()  # cuts off a line that was left incomplete
                yield
        except OSError as error:
            if failure := disk_failure(error):
                raise DiskFailure(f"{failure}; then the same command goes on") from None
            raise

    def trials(self) -> list[TrialRecord]:
        """Return all trials in the order of their numbers, those among them that repeat another one."""
        found = self.study.get_trials(deepcopy=False)
        return [msgspec.convert(trial.user_attrs["record"], TrialRecord) for trial in found]

    # ---- changes: within ``changing`` alone ------------------------------------------------------------

    def add(self, record: TrialRecord) -> None:
        """Add a trial."""
        state = _STATES.get(record.state, TrialState.RUNNING)
        space, user = distributions(self.request), {"record": msgspec.to_builtins(record)}
        trial = create_trial(state=state, params=record.values, distributions=space, user_attrs=user)
        self.study.add_trial(trial)

    def save(self, record: TrialRecord) -> None:
        """Record what has become of a trial."""
        # A trial's number is its id, because the journal has no other study.
        Trial(self.study, record.number).set_user_attr("record", msgspec.to_builtins(record))
        self._tell(record)

    def _tell(self, record: TrialRecord) -> None:
        """Give Optuna's trial the values and the state that it doesn't have yet."""
        trial, there = Trial(self.study, record.number), self.study.get_trials(deepcopy=False)[record.number]
        for result in record.results:
            if result.step not in there.intermediate_values:
                trial.report(result.value, result.step)
        if record.state in ENDED and not there.state.is_finished():
            values = [record.results[-1].value] if record.state == "finished" else None
            self.study.tell(record.number, values, _STATES[record.state])


def write_snapshot(board: Board, state: str, seconds: float) -> None:
    """Write ``trials.json`` (docs/search.md); at the end also the preset and the report."""
    folder, every, message = board.folder, board.trials(), ""
    trials = [trial for trial in every if trial.repeats is None]
    best = best_trial(board.request, trials)
    if state == "finished" and best is None:
        failed = [f"the first failed: {trial.why}" for trial in trials if trial.state == "failed"]
        state, message = "failed", f"no trial has a result; {failed[0] if failed else 'there was no time'}"
    repeat = next((trial for trial in every if best and trial.repeats == best.number), None)
    ended = best if state == "finished" else None
    progress = Progress(
        updated=time.time(),
        state=state,
        message=message,
        seconds=seconds,
        pid=os.getpid(),
        host=socket.gethostname(),
        best={"trial": best.number, **asdict(best.results[-1])} if best else None,
        trials=trials,
        repeat=repeat,
        conclusion=_conclusion(board.request, trials, ended, repeat) if ended else None,
    )
    write_text_atomic(folder / files.PROGRESS, msgspec.json.encode(progress).decode())
    if ended:
        found, known = SearchResult(folder), fields_by_name()
        values = {name: value for name, value in recorded_config(RunDirectory(found.best)).flat().items()
                  if value != known[name].default and name not in _NOT_OF_A_PRESET}  # fmt: skip
        write_json_atomic(folder / files.PRESET, values)
        write_text_atomic(folder / files.REPORT, found.as_markdown())


def _conclusion(
    request: Request, trials: Sequence[TrialRecord], best: TrialRecord, repeat: TrialRecord | None
) -> dict[str, Any]:
    """Return what the search has found and how much of it is chance, as numbers and in words.

    The best of many results is partly the luckiest: a repeat with another seed has no such luck. What the
    best trial loses by repeating is what choosing added by chance.
    """
    name, sign = request.objective, request.sign
    step, chosen = best.results[-1].step, best.results[-1].value
    settings = ", ".join(f"{key} {shown(value)}" for key, value in best.values.items())
    words = [
        f"Trial {best.number} of {len(trials)} is best, with {settings}: {name} {chosen:.4g} at step {step}."
    ]
    equals = equals_of_best(request, trials)
    if equals:
        way = "" if name == "loss" else "; --objective loss may tell them apart"
        words.append(
            f"{counted(equals, 'other trial')} {'has' if equals == 1 else 'have'} the same {name}: "
            f"the first of the {equals + 1} is taken{way}."
        )
    there = [trial.results[0].value for trial in trials if trial.results]
    gain = sign * (best.results[0].value - statistics.median(there))
    if len(there) > 1:
        first = request.places[0].capitalize()
        words.append(f"{first} it was {gain:.4g} better than the median of {len(there)} trials.")
    if failed := [trial for trial in trials if trial.state == "failed"]:
        words.append(f"{counted(len(failed), 'trial')} failed; trial {failed[0].number}: {failed[0].why}.")
    parts = [*repeat.parts.values()] if repeat else []
    again, test = spread(part["value"] for part in parts), spread(part["test"] for part in parts)
    noise = sign * (chosen - again.mean) if again else None
    if again is None:
        why = f"The repeats failed: {repeat.why}." if repeat else "It wasn't repeated."
        mean = f" Each result is the mean of {request.seeds} seeds." if request.seeds > 1 else ""
        words.append(f"{why}{mean} The best of several is partly a lucky one: expect less of another seed.")
    else:
        seeds = counted(again.count, "fresh seed")
        words.append(
            f"Trained again with {seeds}, its {name} is {_spread(again)}. Expect this of a new training."
        )
        if repeat and repeat.state == "failed":
            words.append(f"But of its {len(repeat.runs)} repeats one failed: {repeat.why}.")
        if noise and noise > 0:
            single = "" if again.count > 1 else ", and a single repeat has luck of its own"
            words.append(
                f"The difference, {noise:.4g}, is luck: the best of several results was chosen{single}."
                if len(there) > 1
                else f"The difference, {noise:.4g}, is that of the seeds."
            )
        else:
            words.append("That is no worse than the result by which it was chosen.")
    if not request.space:  # one trial, from which nothing was chosen
        own, test = (spread(part[key] for part in best.parts.values()) for key in ("value", "test"))
        words = [f"{counted(request.seeds, 'training')} with other seeds."]
        for found, images in ((own, "validation"), (test, "test")):
            words += [f"On the {images} images, {name} is {_spread(found)}."] if found else []
    elif test is not None:
        words.append(f"On the test images, which no trial has seen, the repeats have {name} {_spread(test)}.")
    return {
        "trial": best.number,
        "chosen_value": chosen,
        "repeated_mean": again and again.mean,
        "repeated_std": again and again.std,
        "test_mean": test and test.mean,
        "test_std": test and test.std,
        "noise": noise,
        "words": words,
    }


def _spread(found: Spread) -> str:
    return f"{found.mean:.4g}" + (f" ± {found.std:.2g} (standard deviation)" if found.std is not None else "")
