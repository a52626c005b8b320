"""What a search has found, read from its folder."""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError, require_extra
from labkit.experiments.search import files
from labkit.experiments.search.files import Progress, Request, Result, TrialRecord
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import read_json
from labkit.tables import html_table, markdown_table, text_table

LOST_SECONDS = 60.0  # without a word from the process that searches
FEWEST = 4  # results that tell of importance
Importance = tuple[list[tuple[str, float]], str, int]


def shown(value: Any) -> str:
    """Return a value in words."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class SearchResult:
    """A search as its folder has it when it is first read. A notebook shows its trials, the best first.

    ``folder``: of the search, with a run directory for each trial and seed.
    """

    folder: Path

    @cached_property
    def request(self) -> Request:
        """What was asked. Raises InputError if the folder has no search."""
        if (found := files.read_request(self.folder)) is None:
            raise InputError(f"{self.folder} has no search; give the folder of one")
        return found

    @cached_property
    def progress(self) -> Progress:
        """How far it is, also before its first trial. Raises InputError if its file can't be read."""
        try:
            return read_json(self.folder / files.PROGRESS, Progress)
        except FileNotFoundError:
            return Progress()

    @property
    def state(self) -> str:
        """Its state; ``lost`` where the process that searched has been silent for a minute."""
        silent = time.time() - self.progress.updated > LOST_SECONDS
        return "lost" if self.progress.state == "running" and silent else self.progress.state

    @property
    def study(self) -> Any:
        """Optuna's study, for its importances and figures."""
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        journal = JournalStorage(JournalFileBackend(str(self.folder / files.JOURNAL)))
        return optuna.load_study(study_name="search", storage=journal)

    @cached_property
    def trials(self) -> list[TrialRecord]:
        """The trials as ``trials.json`` has them, best first."""
        return files.best_first(self.request, self.progress.trials)

    @property
    def best_trial(self) -> TrialRecord | None:
        """The best trial so far; None before the first result."""
        return files.best_trial(self.request, self.progress.trials)

    @property
    def equals(self) -> int:
        """How many other trials have the result of the best one, at the same rung."""
        return files.equals_of_best(self.request, self.progress.trials)

    @cached_property
    def results(self) -> list[tuple[TrialRecord, Result]]:
        """The results of all trials, in the order in which they came in."""
        found = [(trial, result) for trial in self.progress.trials for result in trial.results]
        return sorted(found, key=lambda pair: pair[1].at)

    def improvements(self) -> list[Result]:
        """Return the results that were better than all before them, in the order in which they came in."""
        found: list[Result] = []
        for _, result in self.results:
            if not found or self.request.sign * (result.value - found[-1].value) > 0:
                found.append(result)
        return found

    def at_rung(self, rung: int) -> list[tuple[TrialRecord, Result]]:
        """Return each trial with a result at a rung, from 0, and the result, in the order they came in."""
        found = [(trial, trial.results[rung]) for trial in self.progress.trials if len(trial.results) > rung]
        return sorted(found, key=lambda pair: pair[1].at)

    def importance(self) -> Importance:
        """Return how much each setting decides, where (such as ``at step 100``), and of how many results.

        It is the share of the setting in the differences of the results, the largest first, by fANOVA (Hutter
        et al., "An efficient approach for assessing hyperparameter importance", 2014), which Optuna computes.
        It is of the rung with most results: there all trials have trained as long.

        Raises InputError where Optuna isn't installed, and for too few different results.
        """
        require_extra("search", ("optuna",), "The importance of settings")
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances

        from labkit.experiments.search.decide import study_of

        space = self.request.space
        places = self.request.places
        rung = max(range(len(places)), key=lambda rung: (len(self.at_rung(rung)), -rung))
        found = [
            ({name: trial.values[name] for name in space}, result.value)
            for trial, result in self.at_rung(rung)
            if trial.values.keys() >= space.keys()
        ]
        if len(found) < FEWEST or len({value for _, value in found}) < 2:
            raise InputError(f"The importance of settings needs {FEWEST} different results of one rung.")
        # With 1,000 results, deeper trees take four times as long and change no share by 0.01.
        evaluator = FanovaImportanceEvaluator(seed=0, max_depth=8)
        shares = get_param_importances(study_of(self.request, found), evaluator=evaluator)
        return sorted(shares.items(), key=lambda pair: -pair[1]), places[rung], len(found)

    @property
    def best(self) -> Path:
        """The run directory of the best trial. Raises InputError if no trial has a result yet."""
        if self.best_trial is None:
            raise InputError(f"no trial in {self.folder} has a result")
        return self.folder / self.best_trial.runs[0]

    @property
    def best_config(self) -> Config:
        """The configuration of the best trial, for another training."""
        return recorded_config(RunDirectory(self.best)).replace({"job_dir": None, "evaluate_test": True})

    @property
    def words(self) -> list[str]:
        """What was found, in sentences; empty before the end."""
        return list((self.progress.conclusion or {}).get("words", []))

    def table(self) -> list[list[str]]:
        """Return a header and a row for each trial, best first, as text."""
        space, objective = self.request.space, self.request.objective
        rows = [["trial", *space, objective, "step", "state"]]
        for trial in self.trials:
            last = (trial.last.value, trial.last.step) if trial.last else ("", "")
            cells = [trial.number, *(trial.values[name] for name in space), *last]
            rows.append([*map(shown, cells), trial.state])
        return rows

    def as_markdown(self) -> str:
        """Return words, table, why trials ended, and the command."""
        why = [f"- trial {one.number} {one.state}: {one.why}" for one in self.trials if one.why]
        parts = [
            *self.words,
            markdown_table(self.table()),
            "\n".join(why),
            f"```\n{self.request.command}\n```",
        ]
        return "\n\n".join(["# Search", *filter(None, parts)]) + "\n"

    def __str__(self) -> str:
        return "\n".join([text_table(self.table()), *self.words])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, *rows = self.table()
        return html_table(header, rows, caption=" ".join(self.words))
