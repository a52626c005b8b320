"""Prepare a data set or check networks in a child process: ``python -m <this module> data|networks JSON``.

Both may import TensorFlow. The process of ``labkit compare`` must not: its memory would hide the peak memory
of the trainings (``labkit.analysis.comparison.processes``). Networks are checked before the first training
starts, so that a model that can't be trained is refused at once and not after hours.
"""

import json
import sys
from collections.abc import Mapping, Sequence

from labkit.analysis.comparison.processes import exit_code
from labkit.config import Config
from labkit.data.manifest import Manifest, load_manifest
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow
from labkit.training.resolution import data_directory, ensure_data_set

__all__ = ["check_networks", "main"]


def check_networks(configs: Mapping[str, Config], manifest: Manifest) -> None:
    """Build each network and check it as its training would.

    Args:
        configs: by the model's name. All must use the same devices.
        manifest: of the data set that all are trained with.

    Raises InputError, which names the model, for the first network that can't be trained.
    """
    import_tensorflow()
    from labkit.distributed.devices import choose_data_format
    from labkit.models.registry import build_model
    from labkit.training.network import check_network
    from labkit.training.session import prepare_devices
    from labkit.transfer.load import prepare_transfer

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
    """Prepare the data set of a configuration, or check the networks of several. Returns the exit code.

    Args:
        arguments: ``data`` and a configuration as JSON, or ``networks`` and configurations by name as JSON.
    """
    kind, text = arguments

    def work() -> None:
        if kind == "data":
            ensure_data_set(Config.from_json(json.loads(text)))
            return
        configs = {name: Config.from_json(value) for name, value in json.loads(text).items()}
        config = next(iter(configs.values()))
        check_networks(configs, load_manifest(data_directory(config), config.data.dataset))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
