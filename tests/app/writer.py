"""Stands in for a training: appends a row every few milliseconds until SIGTERM, as `labkit train` does.

Usage: python writer.py RUN_DIRECTORY [FIRST_STEP]
"""

import math
import os
import signal
import socket
import sys
import time

from labkit.runs import MetricsWriter, RunDirectory, Status, write_json_atomic

TOTAL_STEPS = 100_000
SECONDS_PER_STEP = 0.05
MAX_SECONDS = 240.0  # ends by itself should the test that started it be gone


def main() -> None:
    run, first = RunDirectory(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    run.create()
    write_json_atomic(run.config_path, {"data": {"dataset": "shapes"}, "run": {"train_steps": TOTAL_STEPS}})
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    writer, started = MetricsWriter(run.metrics_path), time.time()
    if first > 1:
        writer.mark_seam(first - 1)

    def say(state: str, step: int) -> None:
        run.write_status(
            Status(
                state,
                step,
                TOTAL_STEPS,
                time.time(),
                started,
                os.getpid(),
                socket.gethostname(),
                "",
                2560.0,
                90.0,
            )
        )

    step = first
    while not stopped and time.time() - started < MAX_SECONDS:
        row = {"split": "train", "step": step, "epoch": step / 352, "loss": 2.3 * math.exp(-step / 400)}
        row |= {"accuracy": 1 - math.exp(-step / 400), "learning_rate": 0.1, "examples_per_second": 2560.0}
        row |= {"seconds_per_step": 0.05, "input_wait_fraction": 0.0, "wall_time": time.time()}
        writer.append([row])
        say("running", step)
        time.sleep(SECONDS_PER_STEP)
        step += 1
    say("interrupted", step - 1)


if __name__ == "__main__":
    main()
