"""``labkit search`` with a stand-in for ``labkit train``, which needs no TensorFlow.

``fake_search.py search FLAGS``: the command. ``fake_search.py train FLAGS``: a training whose steps take a
millisecond, and in its rows a hundredth of a second, or a fifth with the momentum 0.55. Its validation has
the accuracy 0.9 - |learning rate - 0.3| + (step, seed) / 1000, and it fails, hangs, gives NaN or is slow
where the momentum is 0.11, 0.22, 0.33 or 0.44. With 0.66 it fails for the seed 2 alone.
"""

import json
import os
import sys
import time
from pathlib import Path

from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.directory import RunLock
from labkit.run_directory.metrics import MetricsWriter

MOMENTS = {0.11: "fails", 0.22: "hangs", 0.33: "nan", 0.44: "slow"}


def flags_of(words: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    while words:
        name, equals, value = words.pop(0).removeprefix("--").partition("=")
        if not equals and words and not words[0].startswith("--"):
            value = words.pop(0)
        given[name] = value
    return given


def train(words: list[str]) -> int:
    given = flags_of(words)
    run, last = RunDirectory(given["job-dir"]), int(given["train-steps"])
    until, every = (
        min(last, int(os.environ["LABKIT_UNTIL_STEP"])),
        int(given.get("validate-every-steps", last)),
    )
    rate, seed = float(given.get("learning-rate", 0.1)), int(given["seed"])
    momentum, left = float(given.get("momentum", 0.9)), float(os.environ.get("LABKIT_UNTIL_SECONDS") or "inf")
    behaviour, seconds = MOMENTS.get(momentum, ""), 0.2 if momentum == 0.55 else 0.01
    behaviour = "fails" if (momentum, seed) == (0.66, 2) else behaviour
    run.create()
    lock = RunLock(run)
    if not lock.acquire():
        return 2
    step = began = max(run.checkpoint_steps(), default=0)
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(step)
    from labkit.config import Config

    config = {"learning_rate": rate, "train_steps": last, "seed": seed, "dataset": "shapes"}
    write_json_atomic(run.config_path, Config.from_flat(config).to_json())

    def status(state: str, message: str = "") -> None:
        now = {"pid": os.getpid(), "host": os.uname().nodename, "heartbeat": time.time()}
        run.write_status(Status(state, step=step, total_steps=last, message=message, **now))

    while step < until:
        step += 1
        time.sleep(0.02 if behaviour == "slow" else 0.001)
        writer.append([{"split": "train", "step": step, "loss": 1.0, "seconds_per_step": seconds}])
        left -= seconds if step > began + 1 else 0
        if behaviour and step == 3:
            if behaviour == "hangs":
                status("running")
                time.sleep(3600)
            if behaviour == "fails":
                status("failed", "loss is nan at step 3")
                return 1
        if step % every == 0 or step == last:
            accuracy = 0.9 - abs(rate - 0.3) + (step + seed) / 1000
            row = {"split": "validation", "step": step, "accuracy": accuracy, "examples": 100_000}
            writer.append([row if behaviour != "nan" else row | {"accuracy": float("nan")}])
            checkpoint = run.checkpoints_path / f"step-{step:08d}"
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "weights").write_text(json.dumps([rate, seed, step]))
            until = step if left <= 0 else until
    if step == last and "evaluate-test" in given:
        writer.append([{"split": "test", "step": step, "accuracy": 0.5 + seed / 1000}])
    status("finished" if step == last else "interrupted")
    return 0


def main(words: list[str]) -> int:
    if words[0] == "train":
        return train(words[1:])
    from labkit.commands import main as cli
    from labkit.experiments.search import work

    work.python_command = lambda *_: (sys.executable, __file__, *_[2:])
    work.has_no_gpu = lambda: False  # where no training is forked
    return cli.main(words)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main(sys.argv[1:]))
