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
from labkit.quiet_import import import_tensorflow
from labkit.training.resolution import data_directory

__all__ = ["check_networks", "main"]


def check_networks(configs: Mapping[str, Config], manifest: Manifest) -> None:
    """Build each network, and check it as its training will.

    Args:
        configs: by the model's name; they share their devices.
        manifest: of the data set that all are trained with.

    Raises InputError, which names the model, for the first that can't be trained.
    """
    import_tensorflow()
    from labkit.distributed.devices import choose_data_format
    from labkit.models.registry import build_model
    from labkit.training.initial_weights import prepare_transfer
    from labkit.training.network import check_network
    from labkit.training.session import prepare_devices

    plan = prepare_devices(next(iter(configs.values())))
    for name, config in configs.items():
        try:
            model = build_model(
                config.model,
                num_classes=manifest.num_classes,
                image_shape=manifest.image_shape,
                data_format=choose_data_format(config.model, plan),
                seed=config.run.seed,
            )
            check_network(model, config)
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
