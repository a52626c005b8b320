"""What a search has found, read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.experiments.search.request import Request, read_request
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import read_object
from labkit.tables import html_table, markdown_table, text_table

TRIALS, JOURNAL = "trials.json", "journal.log"


def shown(value: Any) -> str:
    """Return a value in words."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class SearchResult:
    """A search as its folder has it now. A notebook shows its trials as a table, best first.

    ``folder``: of the search, with a run directory for each trial and seed.
    """

    folder: Path

    @property
    def request(self) -> Request:
        """What was asked. Raises InputError if the folder has no search."""
        if (found := read_request(self.folder)) is None:
            raise InputError(f"{self.folder} has no search; give the folder of one")
        return found

    @property
    def snapshot(self) -> dict[str, Any]:
        """The content of ``trials.json``; empty before the first trial."""
        return read_object(self.folder / TRIALS)

    @property
    def study(self) -> Any:
        """Optuna's study, for its importances and figures."""
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        journal = JournalStorage(JournalFileBackend(str(self.folder / JOURNAL)))
        return optuna.load_study(study_name="search", storage=journal)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials as ``trials.json`` has them, best first."""
        sign = -1 if self.request.direction == "maximize" else 1

        def place(trial: Mapping[str, Any]) -> tuple[float, ...]:
            results = trial["results"]
            return -len(results), sign * results[-1]["value"] if results else 0.0, trial["number"]

        return sorted(self.snapshot.get("trials", []), key=place)

    @property
    def best(self) -> Path:
        """The run directory of the best trial. Raises InputError if no trial has a result yet."""
        if not self.snapshot.get("best"):
            raise InputError(f"no trial in {self.folder} has a result")
        return self.folder / str(self.trials[0]["runs"][0])

    @property
    def best_config(self) -> Config:
        """The configuration of the best trial, for another training."""
        return recorded_config(RunDirectory(self.best)).replace({"job_dir": None, "evaluate_test": True})

    @property
    def words(self) -> list[str]:
        """What was found, in sentences; empty before the end."""
        return list((self.snapshot.get("conclusion") or {}).get("words", []))

    def table(self) -> list[list[str]]:
        """Return a header and a row for each trial, best first, as text."""
        space, objective = self.request.space, self.request.objective
        rows = [["trial", *space, objective, "step", "state"]]
        for trial in self.trials:
            last = trial["results"][-1] if trial["results"] else {"value": "", "step": ""}
            cells = [trial["number"], *(trial["values"][name] for name in space), last["value"], last["step"]]
            rows.append([*map(shown, cells), trial["state"]])
        return rows

    def as_markdown(self) -> str:
        """Return words, table, why trials ended, and the command."""
        why = [f"- trial {one['number']} {one['state']}: {one['why']}" for one in self.trials if one["why"]]
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
