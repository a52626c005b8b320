"""What a search does next, as a function of the results that are there: proposals and promotions."""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import create_trial

from labkit.experiments.search.files import ENDED, Request, Result, TrialRecord
from labkit.plurals import counted


def distributions(request: Request) -> dict[str, Any]:
    """Return Optuna's distributions of a search's space."""
    kinds: Any = optuna.distributions
    ranges = {"int": kinds.IntDistribution, "float": kinds.FloatDistribution}
    return {
        name: kinds.CategoricalDistribution(one.choices)
        if one.kind == "choice"
        else ranges[one.kind](one.low, one.high, log=one.log)
        for name, one in request.space.items()
    }


def study_of(
    request: Request, results: Iterable[tuple[Mapping[str, Any], float]], sampler: Any = None
) -> optuna.Study:
    """Return a study of Optuna, in memory, with the values of some trials and the result of each."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, space = optuna.create_study(direction=request.direction, sampler=sampler), distributions(request)
    for values, value in results:
        study.add_trial(create_trial(params=dict(values), distributions=space, value=value))
    return study


def proposed(request: Request, trials: Sequence[TrialRecord]) -> dict[str, Any] | None:
    """Return the values of the next trial; None if there is none, or none yet.

    TPE (Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011) learns from the values at the
    first rung of all trials but the last ``in_flight - 1``, which may still run. So a proposal is a function
    of the search's seed and the results of earlier trials: neither the time that they took nor an
    interruption changes it.
    """
    number = len(trials)
    if number >= request.trials:
        return None
    if request.sampler == "grid":
        points = itertools.product(*(one.choices for one in request.space.values()))
        return dict(zip(request.space, next(itertools.islice(points, number, None)), strict=True))
    seed = int.from_bytes(hashlib.sha256(f"{request.seed} {number}".encode()).digest()[:4], "big")
    sampler: Any = optuna.samplers.RandomSampler(seed=seed)
    results = list[tuple[Mapping[str, Any], float]]()
    if request.sampler == "tpe":
        sampler, before = (
            optuna.samplers.TPESampler(seed=seed),
            trials[: max(0, number - request.in_flight + 1)],
        )
        if any(not trial.results and trial.state not in ENDED for trial in before):
            return None
        results = [(trial.values, trial.results[0].value) for trial in before if trial.results]
    return dict(study_of(request, results, sampler).ask(distributions(request)).params)


def ranked(request: Request, trials: Sequence[TrialRecord], rung: int) -> list[TrialRecord]:
    """Return the trials that have a result at a rung, the best one first; of equals the earlier one."""
    there = [trial for trial in trials if len(trial.results) > rung]
    return sorted(there, key=lambda trial: (-request.sign * trial.results[rung].value, trial.number))


def decided(request: Request, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Let trials go on to their next rung, or end, at the lowest rung with any. Returns those.

    Successive halving decides when all trials of a rung are there, so that its decisions depend on results
    alone. ASHA (Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020) lets a trial go on as
    soon as it is among the best of those that are there: that depends on the order in which they come.
    """
    all_there, changed = len(trials) >= request.trials, []
    for rung, where in enumerate(request.places[:-1]):
        entered = [trial for trial in trials if trial.rung >= rung]
        all_there = all_there and all(len(one.results) > rung or one.state in ENDED for one in entered)
        if request.halving == "successive" and not all_there:
            break
        there = ranked(request, entered, rung)
        keep = max(len(there) // request.eta, 1 if all_there else 0)
        on = keep + sum(trial.rung > rung for trial in there[keep:])
        for place, trial in enumerate(there, 1):
            if trial.state in ENDED or trial.rung > rung:
                continue
            if place <= keep:
                trial.rung, trial.parts = rung + 1, {}
                changed.append(trial)
            elif all_there:
                value = f"{trial.results[rung].value:.4g} {where}"
                equal = trial.results[rung].value == there[keep - 1].results[rung].value
                tie = ", equal to one that went on" if equal else ""
                trial.why = f"{value} is number {place} of {len(there)}{tie}; {counted(on, 'trial')} went on"
                trial.state = "pruned"
                changed.append(trial)
        if changed:
            break
    return changed


def update(request: Request, trial: TrialRecord, run: str, found: Mapping[str, Any]) -> None:
    """Take what has become of a run of a trial: it is ``running``, ``paused``, ``failed`` or ``finished``.

    Once all seeds have finished a rung, the trial has a result there.
    """
    trial.worker = found.get("worker", "")
    if found["state"] != "finished":
        trial.state, trial.why = found["state"], found.get("why", "")
        return
    trial.parts[run] = dict(found)
    parts = [trial.parts[name] for name in trial.runs if name in trial.parts]
    if len(parts) == len(trial.runs):
        values = [part["value"] for part in parts]
        seconds, at = sum(part["seconds"] for part in parts), max(part["at"] for part in parts)
        step = max(part["step"] for part in parts)
        mean = round(sum(values) / len(values), 12)  # the same in any order of the seeds
        trial.results.append(Result(step, mean, values, seconds, at))
        ends = trial.rung == len(request.places) - 1 or trial.repeats is not None
        trial.state = "finished" if ends else "paused"
