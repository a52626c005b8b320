"""``labkit.search``: many trainings with other settings under one budget, of which the best is kept."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal

from labkit.config import by_field
from labkit.errors import InputError, require_extra, short
from labkit.experiments.search.files import REQUEST
from labkit.experiments.search.request import joined, merged, plan_search
from labkit.experiments.search.result import SearchResult
from labkit.experiments.search.space import code_folder
from labkit.experiments.trials import named_folder, print_at_once
from labkit.parts.objects import as_files
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic
from labkit.run_directory.files import locked
from labkit.startup.child import record_stop
from labkit.startup.interruption import stop_signals


def search(
    space: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    halving: Literal["none", "successive", "asha"] = "none",
    eta: int = 3,
    rung_seconds: float | None = None,
    objective: str | None = None,
    seeds: int = 1,
    repeats: int = 3,
    workers: int = 1,
    in_flight: int | None = None,
    patience: float = 600.0,
    output: str | os.PathLike[str] | None = None,
    join: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    announce: Callable[[str], None] = print_at_once,
    **flags: Any,
) -> SearchResult:
    """Search settings: train with other values of some, and keep the best by validation.

    A trial is an ordinary run. With halving, most trials end early: at some steps, the rungs, one of ``eta``
    trials goes on. It continues from its checkpoint, with the same bits as if it had never paused. The same
    call continues a search that was interrupted or killed, and returns a finished one at once.

    Args:
        space: settings and their values by name: a list of choices, or a text as on the command line, such as
            ``"log:0.01:1"``. A choice may be an object where ``labkit.train`` takes one:
            ``{"model": [small, wide]}``.
        trials: Trials. Default: all points of a grid, else 20; with --minutes as many as fit, at most 1000
            (20 with successive halving).
        minutes: Minutes after which no trial goes on, pauses between calls not counted. The repeats of the
            best trial come after that. Default: no limit.
        sampler: How values are chosen: tpe learns from the trials before, random doesn't, grid takes all
            combinations.
        halving: Which trials train to their end: all of them (none), the best of each rung when all are
            there (successive), or each that is among the best of those that are there (asha), which keeps
            more workers busy, but depends on the order in which trials come.
        eta: Of the trials at a rung, one in so many goes on; the next rung is so many times as far.
        rung_seconds: Seconds of training after which trials are compared first, at the next validation, in
            place of steps: networks of other speeds get the same time. Which trials go on then depends on the
            clock. The last rung is the end of a training. Default: rungs are steps.
        objective: Metric of the validation that decides; of loss, and of what ends in loss or error, the
            lowest is best. Default: accuracy; micro-F1 of several labels; mean_absolute_error of numbers.
        seeds: Seeds of each trial; the mean of their results counts. A grid without space is one trial of
            so many seeds, which are tested.
        repeats: Trainings of the best trial with fresh seeds at the end, which show how much of its result
            is chance.
        workers: Trainings at once on this machine, which share its cores and GPUs.
        in_flight: Trials that may be under way, on all machines, while tpe proposes. Default: --workers.
        patience: Seconds without a sign of life after which a training is killed, and has failed.
        output: Folder of the search. Default: <home>/searches/<name made from the settings>.
        join: Folder of a search on which other processes may work, too. Without space it must be there.
        preset: A named run, or a file, from which all trials start.
        announce: takes lines for people.
        **flags: any flag of ``labkit train`` by its name, and objects where ``labkit.train`` takes them; the
            same for all trials. What an object sets besides, such as an optimizer's rate, the space replaces.

    Returns the search: ``trials``, ``best`` (a run directory), ``best_config``, ``words``, and Optuna's
    ``study``. Its folder has the best settings as ``preset.json``, for ``labkit train --preset``.

    Raises InputError, before anything is written, for what can't be searched or trained. Raises
    KeyboardInterrupt, with the signal's number, if this process is asked to stop. Raises RuntimeError if
    every trial has failed.
    """
    require_extra("search", ("optuna",), "labkit search")
    from labkit.experiments.search.board import LOCK_SECONDS
    from labkit.experiments.search.work import Search

    if output is not None and join is not None:
        raise InputError(f"--join is {short(join)} beside --output {short(output)}; give one of the two")
    folder = named_folder("--output", output) or named_folder("--join", join)
    asked = {"trials": trials, "minutes": minutes, "sampler": sampler, "halving": halving, "eta": eta,
             "rung_seconds": rung_seconds, "objective": objective, "seeds": seeds, "repeats": repeats,
             "workers": workers, "in_flight": in_flight, "patience": patience, "preset": preset}  # fmt: skip
    with stop_signals() as signals, as_files(flags, code_folder()) as given:
        if space is None and folder and join is not None:
            own, known = ("workers", "patience"), inspect.signature(search).parameters
            others = [name for name in asked if name not in own and asked[name] != known[name].default]
            request = joined(folder, [*flags, *others], asked)
        else:
            names = [name for name in space if isinstance(name, str)] if isinstance(space, Mapping) else []
            varies = {field for name in names for field in by_field({name.partition(".")[0]: None})}
            fixed = {name: given[name] for name in given if name in flags or name not in varies}
            folder, request = plan_search(space, fixed, asked, folder, signals)
        folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(RunDirectory(folder))
        if not lock.acquire() and join is None:
            raise InputError(f"another process works on {folder}; to work beside it: --join {folder}")
        try:
            with locked(folder / ".request.lock", LOCK_SECONDS):
                request = merged(folder, request)
                write_json_atomic(folder / REQUEST, asdict(request))
            work = Search(folder, request, workers, patience, signals, announce)
            work.work()
        finally:
            lock.release()
        if signals:
            announce("stopped; the same command continues")
            record_stop(int(work.seconds))  # of which a later session has more
            raise KeyboardInterrupt(signals[0])
    result = SearchResult(folder)
    if result.progress.state == "failed":
        raise RuntimeError(result.progress.message)
    return result
