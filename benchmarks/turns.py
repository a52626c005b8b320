"""Flags and main loop of a process that measures turns; ``processes.Turns`` starts such processes."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import PRECISIONS
from labkit.config import Config
from labkit.data.manifest import Manifest

if TYPE_CHECKING:
    from labkit.training.network import Network

__all__ = [
    "COLD_STEPS",
    "data_set_flags",
    "make_turns_parser",
    "network_on_cpu",
    "serve_turns",
    "turns_flags",
]

COLD_STEPS = 2  # of a training turn, with the caches full of other sides' data; not measured on any side


def make_turns_parser(
    description: str | None, *, of_resnet: bool = True, of_data_set: bool = True
) -> argparse.ArgumentParser:
    """Return a parser with the flags of ``turns_flags`` and, with ``of_data_set``, of ``data_set_flags``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="batches of a turn")
    if of_resnet:
        parser.add_argument("--num-layers", type=int, required=True)
    if of_data_set:
        parser.add_argument("--data-dir", type=Path, required=True)
        parser.add_argument("--dataset", required=True)
    return parser


def turns_flags(options: argparse.Namespace, precision: str) -> list[str]:
    """Return the flags with which a script that measures a ResNet starts the processes of all sides."""
    flags = ["--num-layers", str(options.num_layers), "--batch-size", str(options.batch_size)]
    return [*flags, "--steps", str(options.steps), "--precision", precision]


def data_set_flags(manifest: Manifest) -> list[str]:
    """Return the flags that name a prepared data set."""
    return ["--data-dir", str(manifest.directory.parent), "--dataset", manifest.dataset]


def network_on_cpu(options: argparse.Namespace, values: Mapping[str, Any]) -> "Network":
    """Return labkit's network for the data set and precision in ``options``; ``values``: of the rest.

    Without ``num_gpus`` among the values, it trains on one CPU.
    """
    from labkit.training.network import Network
    from labkit.training.plan import plan_measurement

    place = {"data_dir": str(options.data_dir), "dataset": options.dataset}
    config = Config.from_flat({"num_gpus": 0, **values, **place, "precision": options.precision})
    plan = plan_measurement(config)
    return Network(plan.config, plan.manifest, plan.devices, plan.data_format)


def serve_turns(turn: Callable[[], Mapping[str, Any]]) -> None:
    """Measure one turn for each line on stdin and print it as a line of JSON, until the end of stdin."""
    for _ in iter(sys.stdin.readline, ""):
        print(json.dumps(turn()), flush=True)
