"""Run directories for the tests of commands that only read them."""

import socket

from labkit.config import Config
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter


def make_run(folder, name, *, state="finished", step=20, rows=(), pid=0, host=None, heartbeat=0.0, **values):
    """Write the directory of a run of 20 steps as a training leaves it; ``values``: of the configuration."""
    run = RunDirectory(folder / name)
    run.create()
    config = Config.from_flat({"dataset": "shapes", "num_layers": 8, "train_steps": 20, **values})
    write_json_atomic(run.config_path, config.replace({"job_dir": str(run.path)}).to_json())
    host = socket.gethostname() if host is None else host
    run.write_status(Status(state, step=step, total_steps=20, pid=pid, host=host, heartbeat=heartbeat))
    writer = MetricsWriter(run.metrics_path)
    writer.append(list(rows))
    writer.close()
    return run


def evaluation(split, step, accuracy, loss=0.5):
    return {"split": split, "step": step, "loss": loss, "accuracy": accuracy}
