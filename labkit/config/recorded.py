"""The configuration that a run directory records."""

from labkit.config.whole import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["recorded_config"]


def recorded_config(run: RunDirectory) -> Config:
    """Return the configuration that a run was started with. Raises InputError if it is damaged."""
    try:
        return Config.from_json(run.read_config())
    except InputError as error:
        reason = str(error)
        if str(run.path) not in reason:
            reason = f"{run.config_path} is damaged: {reason}"
        raise InputError(f"{reason}; restore the file, or remove the directory") from None
