"""The files of a search, for who writes them and who reads them: what was asked, and how far it is."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from labkit.run_directory.files import read_json

REQUEST, PROGRESS, JOURNAL = "search.json", "trials.json", "journal.log"
PRESET, REPORT = "preset.json", "report.md"
ENDED = ("pruned", "finished", "failed")
Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_IDENTITY = ("space", "sampler", "halving", "eta", "rungs", "rung_seconds", "objective", "seeds", "seed",
             "preset", "fixed", "data_checksum", "code")  # fmt: skip


@dataclass(frozen=True, repr=False)
class Dimension:
    """The values of a setting. ``kind``: ``int`` or ``float``, from ``low`` to ``high``, or ``choice``."""

    kind: Literal["int", "float", "choice"]
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """All choices, or the lowest and the highest value."""
        return self.choices or (self.low, self.high)

    def __repr__(self) -> str:
        kind = {"float": "log", "int": "logint"}.get(self.kind) if self.log else self.kind
        return ",".join(map(str, self.choices)) or f"{kind}:{self.low}:{self.high}"


@dataclass(frozen=True)
class Request:
    """What a search was asked to do, as ``search.json`` has it.

    ``fixed``: flags of ``labkit train`` for all trials, beside ``preset``. ``rungs``: the steps at which
    trials are compared; the last one is the length of a training. ``rung_seconds``: of training, after which
    they are compared instead, before that length. ``code``: a digest of files of code, and of what
    the preset means.
    """

    space: dict[str, Dimension]
    sampler: str
    halving: str
    eta: int
    rungs: tuple[int, ...]
    objective: str
    direction: Literal["minimize", "maximize"]
    trials: int
    minutes: float | None
    seeds: int
    seed: int
    in_flight: int
    repeats: int
    preset: str | None
    fixed: dict[str, Any]
    data_checksum: str
    code: str
    command: str
    created: float
    rung_seconds: tuple[float, ...] = ()
    format: Literal[2] = 2  # 1 had no rung of a trial

    @property
    def places(self) -> list[str]:
        """Where trials are compared, in words; the last one is the end of a training."""
        return [f"after {seconds:,.4g} s" for seconds in self.rung_seconds] + [
            f"at step {step:,}" for step in self.rungs
        ]

    def limit(self, rung: int) -> tuple[int, float | None]:
        """Return the step until which a trial trains for a rung, and the seconds after which it ends, too."""
        if rung < len(self.rung_seconds):
            return self.rungs[-1], self.rung_seconds[rung]
        return self.rungs[rung - len(self.rung_seconds)], None

    @property
    def sign(self) -> int:
        """1 where the highest value is best, -1 where the lowest is."""
        return 1 if self.direction == "maximize" else -1

    def identity(self) -> dict[str, Any]:
        """Return what makes it another search where it differs."""
        known = {name: getattr(self, name) for name in _IDENTITY}
        # Another number of workers goes on with the threads that the search began with.
        known["fixed"] = {name: self.fixed[name] for name in self.fixed if name != "num_intra_threads"}
        return known | ({"trials": self.trials} if self.halving == "successive" else {})


@dataclass(frozen=True)
class Result:
    """What a trial has reached at a rung: the mean of its ``seeds``.

    ``step``: at which it was there, the highest of its seeds'. ``seconds``: of its training steps since the
    rung before. ``at``: seconds of searching until then.
    """

    step: int
    value: Finite
    seeds: list[float]
    seconds: float
    at: float


@dataclass
class TrialRecord:
    """What is known of a trial, as ``trials.json`` has it.

    ``rung``: to which it may train, from 0. ``runs``: one for each seed. ``repeats``: the trial that this one
    repeats with fresh seeds. ``state``: ``waiting``, ``running``, ``paused``, or one of ``ENDED``.
    ``results``: of each rung that all seeds have reached. ``parts``: what each has reached at ``rung``.
    """

    number: int
    values: dict[str, Any]
    rung: int
    runs: list[str]
    repeats: int | None = None
    state: str = "waiting"
    results: list[Result] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    worker: str = ""
    why: str = ""

    @property
    def last(self) -> Result | None:
        """Its result at the highest rung that it has reached."""
        return self.results[-1] if self.results else None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a search is, as ``trials.json`` has it. ``repeat``: of the best trial, with fresh seeds."""

    format: int = 1
    updated: float = 0.0
    state: str = "starting"
    message: str = ""
    seconds: float = 0.0
    pid: int | None = None
    host: str = ""
    best: dict[str, Any] | None = None
    trials: list[TrialRecord] = field(default_factory=list)
    repeat: TrialRecord | None = None
    conclusion: dict[str, Any] | None = None


def best_first(request: Request, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return trials, the best one first: a later rung comes before a better result; of equals the earlier.

    Those that failed come last, whatever they had reached: their settings don't train to the end.
    """

    def place(trial: TrialRecord) -> tuple[float, ...]:
        value = trial.last.value if trial.last else 0
        return trial.state == "failed", -len(trial.results), -request.sign * value, trial.number

    return sorted(trials, key=place)


def best_trial(request: Request, trials: Iterable[TrialRecord]) -> TrialRecord | None:
    """Return the first of ``best_first``; None where all have failed, or have no result yet."""
    best = next(iter(best_first(request, trials)), None)
    return best if best and best.results and best.state != "failed" else None


def equals_of_best(request: Request, trials: Sequence[TrialRecord]) -> int:
    """Return how many other trials have the result of the best one, at the same rung."""
    if (best := best_trial(request, trials)) is None:
        return 0
    rungs, value = len(best.results), best.results[-1].value
    there = [trial for trial in trials if trial.state != "failed" and len(trial.results) == rungs]
    return sum(trial.results[-1].value == value for trial in there) - 1


def read_request(folder: Path) -> Request | None:
    """Return what the search in ``folder`` was asked to do; None if there is none. Raises InputError."""
    if folder.is_file():
        return None
    try:
        return read_json(folder / REQUEST, Request)
    except FileNotFoundError:
        return None
