"""Measure how long training steps take and where their time goes, without writing a run."""

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.experiments.trace import STEP_NAME, StepTimes, read_trace, step_times
from labkit.run_directory.disk import check_writable
from labkit.training.plan import plan_measurement

WARMUP_STEPS = 3  # the first one traces and compiles; memory and input settle during the next ones
STEPS_AHEAD = 100  # batches beyond the last step, so that the input pipeline doesn't run out of work


@dataclass(frozen=True)
class Profile:
    """The result of a profile.

    ``seconds_per_step``, ``waited_per_step`` (seconds of waiting for input) and ``cpu_seconds_per_step`` (of
    all threads) are means over steps that aren't traced. ``flops_per_step``:
    ``labkit.analysis.flops.training_flops`` times the batch size. ``ceiling_gflops``: reached by large matrix
    products in the model's precision. ``times``: None for steps on GPUs, whose traces have another form.
    ``image_size``: side in pixels of the first images of ``progressive_resizing``; None without it.
    """

    model: str
    parameters: int
    device: str
    precision: str
    batch_size: int
    steps: int
    seconds_per_step: float
    waited_per_step: float
    cpu_seconds_per_step: float
    flops_per_step: int
    ceiling_gflops: float
    times: StepTimes | None
    image_size: int | None = None

    @property
    def examples_per_second(self) -> float:
        return self.batch_size / self.seconds_per_step

    @property
    def gflops(self) -> float:
        """GFLOP/s that a step reaches; its time includes everything else that it does."""
        return self.flops_per_step / self.seconds_per_step / 1e9


def profile_training(
    config: Config, *, steps: int, output: Path | None, announce: Callable[[str], None] = print
) -> Profile:
    """Train some steps as ``labkit train`` would, from the initial weights, and measure them.

    The data set is found or prepared as in ``labkit train``. The first step is measured repeatedly, so images
    don't grow and layers don't thaw meanwhile.

    Args:
        config: what to train. No run is written, so ``job_dir`` must be None.
        steps: how many steps to measure, and then how many to trace.
        output: folder for the trace, which TensorBoard's profile plugin reads; None discards the trace.
        announce: takes lines for people.

    Raises InputError, before anything is written, if the configuration can't be trained on this machine.
    """
    if output is not None:
        check_writable(output, "--output")
    plan = plan_measurement(config, announce=announce)
    announce(plan.data_note)
    if plan.devices.banner:
        announce(plan.devices.banner)
    from labkit.training.network import Network

    network = Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    network.adapt_to_data()
    with _trace_folder(output) as folder:
        return _measure(network, steps, folder)


@contextmanager
def _trace_folder(output: Path | None) -> Iterator[Path]:
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="labkit-profile-") as name:
        yield Path(name)


def _measure(network: Any, steps: int, folder: Path) -> Profile:
    import tensorflow as tf

    from labkit.analysis.flops import ceiling, training_flops

    last = WARMUP_STEPS + 2 * steps
    engine = _engine(network, last + STEPS_AHEAD)
    for _ in range(WARMUP_STEPS):
        engine.next_step()
    started, used = time.perf_counter(), time.process_time()
    waited = sum(engine.next_step().waited for _ in range(steps))
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    # Tracing Python's calls would only make the file larger; the operations are traced without it.
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tf.profiler.experimental.Profile(str(folder), options):
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP_NAME, step_num=number, _r=1):
                engine.next_step()
    config, devices = network.config, network.devices
    on_gpu = devices.kind == "GPU" and not devices.simulated
    sizes = {"sizes": (8192,), "device": devices.names[0]} if on_gpu else {}
    image_size = config.data.image_size_at(0, config.run.train_steps)
    flops = training_flops(network.model, network.freezing.at(0), image_size=image_size)
    return Profile(
        model=network.model.name,
        parameters=network.num_parameters(),
        device=devices.describe(),
        precision=config.model.precision,
        batch_size=config.data.images_per_step,
        steps=steps,
        seconds_per_step=seconds / steps,
        waited_per_step=waited / steps,
        cpu_seconds_per_step=cpu / steps,
        flops_per_step=flops * config.data.images_per_step,
        ceiling_gflops=ceiling(config.model.precision, **sizes) * (len(devices.names) if on_gpu else 1),
        times=None if on_gpu else step_times(read_trace(folder)),
        image_size=image_size,
    )


def _engine(network: Any, stop_step: int) -> Any:
    """Return an engine that repeats the first training step, as the training loop would run it."""
    from labkit.distributed.synchronous import SynchronousEngine
    from labkit.training.network import training_batches

    first = network.train_step
    network = copy.copy(network)
    network.train_step_for = lambda *which: first
    return SynchronousEngine(
        network.steps,
        training_batches(network, start_step=0, stop_step=stop_step),
        step=0,
        stopping=lambda: False,
        name="worker:0",
    )
