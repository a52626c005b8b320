"""labkit: train networks on one CPU, several GPUs or a cluster, and read what the runs wrote.

The names in ``__all__`` are the public interface; ``docs/python.md`` shows each of them at work. A name's
module is imported when the name is first used, so ``import labkit`` loads neither TensorFlow nor NumPy.
"""

from labkit.version import VERSION

TYPE_CHECKING = False  # as type checkers know it; to import typing would take half of this module's time
if TYPE_CHECKING:
    from typing import Any

    from labkit.api import correct_data, evaluate, find_learning_rate, prepare_data, train
    from labkit.callbacks.callback import Callback
    from labkit.config import Config
    from labkit.errors import InputError
    from labkit.experiments.replicas import compare_replicas
    from labkit.experiments.search.api import search
    from labkit.figures.compare_runs import CompareRuns
    from labkit.figures.predictions import image_grid
    from labkit.figures.widgets import slider
    from labkit.notebook.background import start
    from labkit.notebook.parameters import read_parameters, watch_parameters
    from labkit.recording.keras_recorder import KerasRecorder
    from labkit.recording.recorder import Recorder, start_run
    from labkit.run import Run, load_run, runs

__version__ = VERSION

__all__ = [
    "Callback",
    "CompareRuns",
    "Config",
    "EarlyStopping",
    "InputError",
    "KerasRecorder",
    "Recorder",
    "Run",
    "compare_replicas",
    "correct_data",
    "evaluate",
    "find_learning_rate",
    "image_grid",
    "load_run",
    "prepare_data",
    "read_parameters",
    "runs",
    "search",
    "slider",
    "start",
    "start_run",
    "train",
    "watch_parameters",
]

_MODULES = {
    "Callback": "labkit.callbacks.callback",
    "CompareRuns": "labkit.figures.compare_runs",
    "Config": "labkit.config",
    "EarlyStopping": "labkit.callbacks.builtin",
    "InputError": "labkit.errors",
    "KerasRecorder": "labkit.recording.keras_recorder",
    "Recorder": "labkit.recording.recorder",
    "Run": "labkit.run",
    "compare_replicas": "labkit.experiments.replicas",
    "correct_data": "labkit.api",
    "evaluate": "labkit.api",
    "find_learning_rate": "labkit.api",
    "image_grid": "labkit.figures.predictions",
    "load_run": "labkit.run",
    "prepare_data": "labkit.api",
    "read_parameters": "labkit.notebook.parameters",
    "runs": "labkit.run",
    "search": "labkit.experiments.search.api",
    "slider": "labkit.figures.widgets",
    "start": "labkit.notebook.background",
    "start_run": "labkit.recording.recorder",
    "train": "labkit.api",
    "watch_parameters": "labkit.notebook.parameters",
}

if not TYPE_CHECKING:  # with it in sight, mypy would accept any name

    def __getattr__(name: str) -> "Any":
        if name not in _MODULES:
            raise AttributeError(f"module 'labkit' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value  # so that the next use doesn't come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
