"""The configuration that a run directory records."""

import functools
from collections.abc import Mapping
from typing import Any

from labkit.config.architectures import model_name
from labkit.config.config import Config, fields_by_name
from labkit.config.model import ModelConfig
from labkit.errors import InputError, unknown_name_error
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import CODE_FOLDER
from labkit.run_directory.summary import Described


def recorded_config(run: RunDirectory) -> Config:
    """Return the configuration that a run was started with. Raises InputError if it is damaged."""
    try:
        config = Config.from_json(run.read_config())
        return config.replace({name: str(run.code_path / value) for name, value in _code_of(config).items()})
    except InputError as error:
        reason = str(error)
        if str(run.path) not in reason:
            reason = f"{run.config_path} is damaged: {reason}"
        raise InputError(f"{reason}; restore the file from a copy") from None


def as_recorded(config: Config) -> Config:
    """Return the configuration as a run records it: files of code are named by where the run keeps them."""
    return config.replace({name: f"{CODE_FOLDER}/{value}" for name, value in _code_of(config).items()})


def _code_of(config: Config) -> dict[str, str]:
    """Return the values that name something in a file of code, without its folder, by field."""
    values, known = config.flat(), fields_by_name()
    return {
        name: info.canonical(values[name])
        for name, info in known.items()
        if info.code_of(values[name]) is not None
    }


def describe(recorded: Mapping[str, Any]) -> Described:
    """Return what a recorded configuration says, for a table of many runs.

    Only values that differ from the defaults are checked, and not how they go together: ``Config.from_json``
    takes several times as long.

    Raises InputError for missing parts, unknown names and values that aren't allowed.
    """
    defaults, known = _defaults()
    given = Config.recorded_values(recorded)
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise unknown_name_error("parameter", name, known)
        if value != defaults[name]:
            settings[name] = known[name].check(value)
    values = {**defaults, **given}
    changed = [(name, value) for name, value in settings.items() if known[name].owner == "model"]
    model = _model_name(tuple(changed))
    shown = {name: value for name, value in settings.items() if name not in PLACES}
    return Described(values["dataset"], model, shown, values)


PLACES = ("job_dir", "data_dir")  # where a run and its data lie on one machine says nothing about the run


@functools.cache
def _defaults() -> tuple[dict[str, Any], dict[str, Any]]:
    return Config().flat(), fields_by_name()


@functools.lru_cache(maxsize=1024)
def _model_name(changed: tuple[tuple[str, Any], ...]) -> str:
    return model_name(ModelConfig(**dict(changed)))
