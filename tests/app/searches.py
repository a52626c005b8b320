"""Searches as ``labkit search`` writes them, for tests of their page."""

import math
import random
import time
from pathlib import Path
from typing import Any

from labkit.run_directory import write_json_atomic

RUNGS = [100, 300, 900]
SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"kind": "float", "low": 0.01, "high": 1.0, "log": True},
    "num_filters": {"kind": "int", "low": 16, "high": 64, "log": False},
    "model": {"kind": "choice", "choices": ["resnet20", "se_resnet20"]},
}


def request(**changes: Any) -> dict[str, Any]:
    return {
        "format": 2,
        "created": time.time(),
        "command": "labkit search --space learning_rate=log:0.01:1 --trials 27",
        "space": SPACE,
        "sampler": "tpe",
        "halving": "successive",
        "eta": 3,
        "rungs": RUNGS,
        "objective": "accuracy",
        "direction": "maximize",
        "trials": 27,
        "minutes": None,
        "seeds": 1,
        "seed": 0,
        "in_flight": 2,
        "repeats": 3,
        "preset": None,
        "fixed": {"dataset": "shapes", "train_steps": 900},
        "data_checksum": "ab12",
        "code": "cd34",
    } | changes


def trials(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return trials of successive halving, of which a learning rate near 0.1 is best; the last one failed."""
    chance, at, found = random.Random(seed), 0.0, []
    for number in range(count):
        values = {
            "learning_rate": 10 ** chance.uniform(-2, 0),
            "num_filters": chance.randint(16, 64),
            "model": chance.choice(["resnet20", "se_resnet20"]),
        }
        quality = 0.5 - 0.2 * abs(math.log10(values["learning_rate"]) + 1) + chance.gauss(0, 0.02)
        quality += 0.001 * values["num_filters"] + 0.02 * (values["model"] == "se_resnet20")
        found.append({"number": number, "values": values, "results": [], "runs": [], "quality": quality})
    going = sorted(found[:-1], key=lambda trial: -trial["quality"])
    for place, step in enumerate(RUNGS):
        for trial in sorted(going, key=lambda trial: trial["number"]):
            at += step / 50
            value = trial["quality"] + 0.1 * place
            trial["results"].append(
                {"step": step, "value": value, "seeds": [value], "seconds": step / 50, "at": at}
            )
        left = going[: max(1, len(going) // 3)]
        for rank, trial in enumerate(going, 1):
            value = trial["results"][-1]["value"]
            why = f"{value:.4f} at step {step} is {rank}th of {len(going)}; the best {len(left)} went on"
            ended = step == RUNGS[-1]
            state = "finished" if ended else "paused" if trial in left else "pruned"
            trial |= {"state": state, "rung": place, "why": "" if ended or trial in left else why}
        going = left
    found[-1] |= {"state": "failed", "rung": 0, "why": "the loss became NaN at step 40"}
    return [trial | {"quality": None, "worker": ""} for trial in found]


def progress(found: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    seconds = max((result["at"] for trial in found for result in trial["results"]), default=0.0)
    return {
        "format": 1,
        "updated": time.time(),
        "state": "finished",
        "message": "",
        "seconds": seconds,
        "pid": 1,
        "host": "elsewhere",
        "best": None,
        "trials": found,
        "repeat": None,
        "conclusion": None,
    } | changes


def write_search(folder: Path, found: list[dict[str, Any]], **changes: Any) -> Path:
    """Write a search with these trials. ``changes``: of its state, or of what was asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: value for name, value in changes.items() if name in request()}
    write_json_atomic(folder / "search.json", request(**asked))
    told = {name: value for name, value in changes.items() if name not in asked}
    write_json_atomic(folder / "trials.json", progress(found, **told))
    return folder
