"""Check the networks of a comparison in a process of its own: ``python -m <this module> RUNS``.

What only a network can tell would otherwise be refused by its own training, behind hours of the others'.
"""

import json
import sys
from collections.abc import Mapping, Sequence

from labkit.analysis.comparison.processes import exit_code
from labkit.config import Config
from labkit.data.manifest import Manifest, load_manifest
from labkit.errors import InputError
from labkit.training.plan import RunPlan, data_directory, decide_devices

__all__ = ["check_networks", "main"]


def check_networks(configs: Mapping[str, Config], manifest: Manifest) -> None:
    """Build each network, and check it as its training will.

    Args:
        configs: by the model's name; they share their devices.
        manifest: of the data set that all are trained with.

    Raises InputError, which names the model, for the first that can't be trained.
    """
    from labkit.training.session import build_network
    from labkit.transfer.load import prepare_transfer

    devices, data_format = decide_devices(next(iter(configs.values())))
    for name, config in configs.items():
        plan = RunPlan(config, manifest, None, "new", manifest.dataset, "", None, False, devices, data_format)
        try:
            model, _ = build_network(plan)
            prepare_transfer(config, manifest, model)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None


def main(arguments: Sequence[str]) -> int:
    """Check the networks of configurations, given by name as JSON. Returns the exit code."""

    def work() -> None:
        configs = {name: Config.from_json(value) for name, value in json.loads(arguments[0]).items()}
        config = next(iter(configs.values()))
        check_networks(configs, load_manifest(data_directory(config), config.data.dataset))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
