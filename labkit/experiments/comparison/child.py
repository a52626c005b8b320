"""Prepare a data set or check networks in a child process: ``python -m <this module> data|networks JSON``.

Both may import TensorFlow. The process of ``labkit compare`` must not: its memory would hide the peak memory
of the trainings (``labkit.experiments.comparison.processes``). Networks are checked before the first training
starts, so that a model that can't be trained is refused at once and not after hours.
"""

import json
import sys
from collections.abc import Mapping, Sequence

from labkit.config import Config
from labkit.data.manifest import Manifest, load_manifest
from labkit.errors import InputError
from labkit.experiments.comparison.processes import exit_code
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras
from labkit.training.plan import data_directory, decide_devices, plan_data

__all__ = ["check_networks", "main"]


def check_networks(configs: Mapping[str, Config], manifest: Manifest) -> None:
    """Build each network and check it as its training would.

    Args:
        configs: by the model's name. All must use the same devices.
        manifest: of the data set that all are trained with.

    Raises InputError, which names the model, for the first network that can't be trained.
    """
    import_tensorflow()
    from labkit.optim.network import build_model_to_train
    from labkit.training.checkpoints import prepare_transfer

    _, data_format = decide_devices(next(iter(configs.values())))
    for name, config in configs.items():
        try:
            model, _ = build_model_to_train(config, manifest, data_format)
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
            *_, note = plan_data(Config.from_json(json.loads(text)))
            print(note, flush=True)
            return
        configs = {name: Config.from_json(value) for name, value in json.loads(text).items()}
        config = next(iter(configs.values()))
        check_networks(configs, load_manifest(data_directory(config), config.data.dataset))

    return exit_code(work)


if __name__ == "__main__":
    leave_out_extras()
    sys.exit(main(sys.argv[1:]))
