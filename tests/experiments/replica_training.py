"""Stands in for ``labkit train`` on a layout, without TensorFlow: ``replica_training.py REPLICAS CONFIG``.

``replica_training.py labkit FLAGS`` is ``labkit replicas FLAGS`` with such trainings.
The losses are 1/step, plus 1e-7 for each further replica, or 0.01 with each replica's own statistics. With
``LEFT_OUT`` in the environment, the last step is left out. A run whose name stands in ``WAITS`` waits for
SIGTERM after its first step.
"""

import json
import os
import signal
import sys

from labkit.config import Config
from labkit.experiments.replicas import Layout
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter


def command(self: Layout, config: Config) -> list[str]:
    return [sys.executable, __file__, str(self.num_replicas), json.dumps(config.to_json())]


def train(num_replicas: int, config: Config) -> int:
    run = RunDirectory(config.run.job_dir)
    resumed = run.exists()
    run.create()
    recorded = config.replace({"random_resized_crop": config.data.random_resized_crop or 0.0})  # as trained
    write_json_atomic(run.config_path, recorded.to_json())
    steps = config.run.train_steps
    apart = 1e-7 if config.model.sync_batch_norm else 0.01
    waits = os.environ.get("WAITS") == run.name
    if waits:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    writer = MetricsWriter(run.metrics_path)
    if resumed:
        writer.mark_resume_point(0)
    for step in range(1, steps + 1 - int("LEFT_OUT" in os.environ)):
        writer.append([{"split": "train", "step": step, "loss": 1 / step + apart * (num_replicas - 1)}])
        if waits:
            writer.close()
            run.write_status(Status("running", step=1, total_steps=steps, host="elsewhere"))
            signal.sigwait([signal.SIGTERM])
            run.write_status(Status("interrupted", step=1, total_steps=steps, host="elsewhere"))
            return 128 + signal.SIGTERM
    writer.close()
    run.write_status(Status("finished", step=steps, total_steps=steps, host="elsewhere"))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "labkit":
        from labkit.commands import main as cli

        Layout.command = command  # type: ignore[method-assign]
        sys.exit(cli.main(["replicas", *sys.argv[2:]]))
    sys.exit(train(int(sys.argv[1]), Config.from_json(json.loads(sys.argv[2]))))
