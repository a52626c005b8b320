"""``--train-batch-size auto``: the largest batch that fits into memory, measured in a process that may die.

``python -m labkit.experiments.batch_size CONFIG`` trains two steps with each batch that it tries.
"""

import gc
import itertools
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from labkit.config import Config, by_field, fields_by_name
from labkit.config.config import recorded_config
from labkit.config.fields import MEASURED
from labkit.data.inputs import available_memory
from labkit.errors import InputError
from labkit.experiments.precision import faster_precision
from labkit.run_directory import RunDirectory
from labkit.startup.child import python_command, record_reason
from labkit.startup.process import MAXRSS_BYTES, Child, described_exit
from labkit.startup.quiet_import import leave_out_extras, quieten_tensorflow
from labkit.training.checks import refuse_cluster
from labkit.training.plan import Measurement, plan_measurement

FIRST = 8  # images of each replica in the first batch
SHARE = 0.8  # of the free memory, which a training may take
LEAST_GROWTH = 300 * 2**20  # bytes from one batch to the next from which larger ones can be told
SECONDS, LONGEST = 60, 600  # after which no larger batch is tried, and the process is ended


def with_measured(
    request: Callable[..., Config],
    flags: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Config:
    """Return the configuration that is asked for, measured where batch size or precision is ``auto``.

    A run that is in the job directory keeps its own, unless ``overwrite``.

    Args:
        request: takes flags, and as ``announce`` what takes a line; returns the configuration.
        flags: by the names of their fields or aliases.
        overwrite: whether the run in the job directory is discarded.

    Raises InputError for a task of a cluster, whose machines may differ, and where nothing can be measured.
    """
    named = by_field(flags)
    replicas = named.get("num_gpus")
    size = FIRST * (replicas if isinstance(replicas, int) and replicas > 1 else 1)
    ghosts = named.get("ghost_batches")
    size = math.lcm(size, size // FIRST * ghosts) if isinstance(ghosts, int) and ghosts > 1 else size
    # Batches are measured in the precision that was found.
    stand_in = {"precision": "float32", "train_batch_size": size}
    asked = [name for name in stand_in if isinstance(named.get(name), str) and named[name] == MEASURED]
    unknown = {name: stand_in[name] for name in asked}
    for name in asked:
        first = request(named | unknown, announce=lambda line: None)
        refuse_cluster(first)
        run = None if overwrite or first.run.job_dir is None else RunDirectory(first.run.job_dir)
        if run is not None and run.exists():
            value, why = recorded_config(run).flat()[name], f"that of the run in {run.path}"
        elif name == "precision":
            value, why = faster_precision(num_gpus=first.distribution.num_gpus)
        else:
            print("--train-batch-size auto: measuring how much memory batches take")
            value, why = _measured(first)
        print(f"{fields_by_name()[name].flag} {MEASURED} takes {value}: {why}")
        named[name] = value
        del unknown[name]
    return request(named)


def _measured(first: Config) -> tuple[int, str]:
    found: list[dict[str, Any]] = []
    module = "labkit.experiments.batch_size"
    with Child(python_command("-m", module, json.dumps(first.to_json())), stderr=None) as child:
        for line in child.lines():
            if not line.startswith('{"tried"'):
                print(line)
                continue
            found.append(json.loads(line))
            print(f"{found[-1]['tried']:,} images fit")
        code = child.wait()
        how = child.reason or described_exit(code or 0)
    if code == -signal.SIGALRM:
        how = f"it took longer than {LONGEST // 60} minutes"
    if not found:
        raise InputError(f"--train-batch-size is auto, but no batch could be measured: {how}; give a number")
    last = found[-1]
    if code:
        return last["tried"], f"the process that tried a larger one ended ({how})"
    return last["size"], last["why"]


# ---- in the child process ------------------------------------------------------------------------------


def _fits(plan: Measurement) -> Iterator[dict[str, Any]]:
    """Try growing batches. Yields after each what fits by what is known so far, and why."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it warns of compiling again, which each batch needs
    data, began = plan.config.data, time.monotonic()
    examples = plan.manifest.count("train")
    most = min(examples // data.accumulate_steps, int(fields_by_name()["train_batch_size"].maximum))
    on_gpu = plan.devices.kind == "GPU" and not plan.devices.simulated
    free, start, size = SHARE * available_memory(), _peak(), data.train_batch_size
    before, peak_before = 0, start
    while True:
        try:
            _train(plan, size)
        except tf.errors.ResourceExhaustedError:
            if not before:
                raise InputError(f"the GPU has no memory for {size} images") from None
            return
        peak = _peak()
        # The first time, network and data are counted in: the images take less.
        image = max(peak - peak_before, 1) / (size - before)
        fitting = size
        while not on_gpu and 2 * fitting <= most and peak - start + (2 * fitting - size) * image <= free:
            fitting *= 2
        is_told = not on_gpu and before > 0 and peak - peak_before > LEAST_GROWTH
        is_late = time.monotonic() - began > SECONDS
        is_most = 2 * fitting > most
        if is_late and not is_told:
            fitting, why = size, f"no larger one was tried after {SECONDS} seconds"
        elif is_most:
            why = f"twice as many are more than the {examples:,} training images, and it fits into memory"
        elif on_gpu:
            why = "twice as many don't fit into the GPU's memory"
        else:
            why = (
                f"{size:,} images took {(peak - start) / 2**20:,.0f} MiB with network and data, each further "
                f"one takes {image / 2**20:.2f} MiB, and {SHARE:.0%} of the free memory is "
                f"{free / 2**20:,.0f} MiB"
            )
        yield {"tried": size, "size": fitting, "why": why}
        if is_told or is_late or (is_most if on_gpu else fitting == size):
            return
        before, peak_before = size, peak
        size = 2 * size if on_gpu else min(4 * size, fitting)


def _peak() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES


def _train(plan: Measurement, size: int) -> None:
    """Train two steps as the training's last ones: with whole images, and layers that thaw."""
    import tensorflow as tf

    from labkit.training.network import Network, training_batches

    config = plan.config.replace({"train_batch_size": size})
    network = Network(config, plan.manifest, plan.devices, plan.data_format)
    frozen = network.freezing.at(config.run.train_steps - 1)
    train_step = network.train_step_for(frozen, None, config.run.inspect_every_steps > 0)
    small, zero = tf.constant(1e-6), tf.constant(0.0)
    for images, labels in itertools.islice(training_batches(network, start_step=0, stop_step=2), 2):
        train_step(images, labels, small, zero)[0].numpy()
    del network, train_step, images, labels
    gc.collect()


def main(text: str) -> int:
    """Print a line for each batch that was tried. Returns the exit code."""
    try:
        plan = plan_measurement(Config.from_json(json.loads(text)))
        signal.alarm(LONGEST)
        for found in _fits(plan):
            print(json.dumps(found), flush=True)
    except InputError as error:
        record_reason(str(error))
        return 2
    return 0


if __name__ == "__main__":
    quieten_tensorflow(os.environ)
    leave_out_extras()
    sys.exit(main(sys.argv[1]))
