"""The configuration that a run directory records."""

import functools
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from labkit.config.architectures import model_name
from labkit.config.config import Config, fields_by_name
from labkit.config.model import ModelConfig
from labkit.errors import InputError, unknown_name_error
from labkit.run_directory import RunDirectory
from labkit.run_directory.summary import Described


def recorded_config(run: RunDirectory) -> Config:
    """Return the configuration that a run was started with. Raises InputError if it is damaged."""
    try:
        config = Config.from_json(run.read_config())
        return config.replace(_files_of_run(run, config))
    except InputError as error:
        reason = str(error)
        if str(run.path) not in reason:
            reason = f"{run.config_path} is damaged: {reason}"
        raise InputError(f"{reason}; restore the file from a copy") from None


def _files_of_run(run: RunDirectory, config: Config) -> dict[str, str]:
    """Return the values that name code, with the copies of the files that the run has kept."""
    kept = {}
    for name, info in fields_by_name().items():
        value = config.flat()[name]
        path = info.file_of(value) if info.is_code else None
        if path is not None and (copy := run.code_path / PurePath(path).name).exists():
            kept[name] = str(copy) + value.removeprefix(path)
    return kept


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
