"""labkit: train networks on one CPU, several GPUs or a cluster, and read what the runs wrote.

The names in ``__all__`` are the public interface; ``docs/python.md`` shows each of them at work. A name's
module is imported when the name is first used, so ``import labkit`` loads neither TensorFlow nor NumPy.
"""

from labkit.version import VERSION

TYPE_CHECKING = False  # as type checkers know it; to import typing would take half of this module's time
if TYPE_CHECKING:
    from typing import Any

    from labkit.api.run import Run, load_run, runs
    from labkit.api.training import evaluate, prepare_data, train
    from labkit.callbacks.callback import Callback
    from labkit.callbacks.early_stopping import EarlyStopping
    from labkit.config import Config
    from labkit.errors import InputError
    from labkit.experiments.replicas import compare_replicas

__version__ = VERSION

__all__ = [
    "Callback",
    "Config",
    "EarlyStopping",
    "InputError",
    "Run",
    "compare_replicas",
    "evaluate",
    "load_run",
    "prepare_data",
    "runs",
    "train",
]

_MODULES = {
    "Callback": "labkit.callbacks.callback",
    "EarlyStopping": "labkit.callbacks.early_stopping",
    "Config": "labkit.config",
    "InputError": "labkit.errors",
    "Run": "labkit.api.run",
    "compare_replicas": "labkit.experiments.replicas",
    "evaluate": "labkit.api.training",
    "load_run": "labkit.api.run",
    "prepare_data": "labkit.api.training",
    "runs": "labkit.api.run",
    "train": "labkit.api.training",
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
