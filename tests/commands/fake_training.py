"""Stands in for ``labkit train`` and for the measuring of a run, without TensorFlow.

``fake_training.py train CONFIG``: train the configuration, given as JSON. What goes wrong is in the file
``behaviour.json`` beside the comparison, by the run's name: ``fail``, ``kill`` or ``wait`` (for
SIGTERM). ``fake_training.py measure RUN``: keep an inference speed. Both leave a line in
``starts.txt`` beside the comparison. ``fake_training.py compare FLAGS``: ``labkit compare`` with these two;
``fake_training.py measure-one NAME FLAGS``: with real trainings, of which the run NAME alone is measured.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.config import Config
from labkit.experiments.comparison.files import update_measurements
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter


def note(run: RunDirectory, what: str) -> None:
    with open(run.path.parent.with_name("starts.txt"), "a") as file:
        file.write(f"{what} {run.name}\n")


def train(config: Config) -> int:
    run = RunDirectory(config.run.job_dir)
    behaviour_path = run.path.parent.with_name("behaviour.json")
    behaviour = json.loads(behaviour_path.read_text()).get(run.name) if behaviour_path.exists() else None
    resumed = run.exists()
    note(run, "resume" if resumed else "train")
    run.create()
    write_json_atomic(run.config_path, config.to_json())
    steps = config.run.train_steps

    def status(state: str, step: int, message: str = "") -> None:
        run.write_status(Status(state, step=step, total_steps=steps, host="elsewhere", message=message))

    writer = MetricsWriter(run.metrics_path)
    if resumed:
        writer.mark_resume_point(0)
    for step in range(1, steps + 1):
        writer.append([{"split": "train", "step": step, "loss": 1.0, "seconds_per_step": 0.1 + step}])
    if behaviour == "kill":
        status("running", 1)
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "fail":
        status("failed", 1, "loss is nan at step 1")
        return 1
    if behaviour == "wait":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        status("running", 1)
        signal.sigwait([signal.SIGTERM])
        status("interrupted", 1, "SIGTERM at step 1")
        return 128 + signal.SIGTERM
    accuracy = (config.run.seed + 5) / 10
    writer.append([{"split": split, "step": steps, "accuracy": accuracy} for split in ("validation", "test")])
    writer.close()
    status("finished", steps)
    return 0


def measure(run: RunDirectory) -> int:
    note(run, "measure")
    values = {"inference_images_per_second": 1000.0, "parameters": 1000, "multiply_adds": 2000}
    update_measurements(run, values)
    return 0


def compare(arguments: list[str], *, train: bool, measured: str = "") -> int:
    """Run ``labkit compare`` with stand-ins: for trainings where ``train``, for measuring all but one run."""
    measure_command = plan.measure_command
    if train:
        plan.train_command = train_command
        plan.check_command = stand_in_check_command
    plan.measure_command = lambda run: (
        measure_command(run) if run.name == measured else stand_in_measure_command(run)
    )
    return cli.main(["compare", *arguments])


def train_command(config: Config) -> list[str]:
    return [sys.executable, __file__, "train", json.dumps(config.to_json())]


def stand_in_check_command(configs: Mapping[str, Config]) -> list[str]:
    return [sys.executable, "-c", "pass"]


def stand_in_measure_command(run: RunDirectory) -> list[str]:
    return [sys.executable, __file__, "measure", str(run.path)]


# ---- for the tests that use them ------------------------------------------------------------------------

SHORT = {"dataset": "shapes", "train_steps": 8, "train_batch_size": 16, "validate_every_steps": 0}


def arguments(output: Path | None, models: str = "resnet8,vgg11", seeds: int = 2, **values) -> list[str]:
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in (SHORT | values).items() if value is not None
    ]
    place = [] if output is None else ["--output", str(output)]
    return ["compare", "--models", models, "--seeds", str(seeds), *place, *flags]


def behave(output: Path, **behaviour: object) -> None:
    """Say what goes wrong in runs; ``resnet8_seed0`` is the run ``resnet8-seed0``."""
    by_run = {name.replace("_seed", "-seed"): value for name, value in behaviour.items()}
    output.with_name("behaviour.json").write_text(json.dumps(by_run))


def starts(output: Path) -> list[str]:
    """Return what was started since the last call."""
    path = output.with_name("starts.txt")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


if __name__ == "__main__":
    kind, first, *rest = sys.argv[1:]
    if kind == "train":
        sys.exit(train(Config.from_json(json.loads(first))))
    if kind == "measure":
        sys.exit(measure(RunDirectory(Path(first))))
    from labkit.commands import main as cli
    from labkit.experiments.comparison import plan

    if kind == "compare":
        sys.exit(compare([first, *rest], train=True))
    sys.exit(compare(rest, train=False, measured=first))
