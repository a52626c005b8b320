"""A training of seconds with everything in it: validations, checkpoints, a test."""

from pathlib import Path

from tests.properties.harness import labkit

TRAIN, VALIDATION, TEST = 60, 10, 20
STEPS, BATCH = 12, 8
SAVED, VALIDATED = 4, 5  # each so many steps
FIELDS = {
    "dataset": "shapes",
    "model": "tutorial_cnn",
    "train_steps": STEPS,
    "train_batch_size": BATCH,
    "eval_batch_size": TEST,
    "learning_rate": 0.01,
    "checkpoint_every_steps": SAVED,
    "keep_checkpoints": STEPS,
    "validate_every_steps": VALIDATED,
    "log_every_steps": 1,
    "num_gpus": 0,
    "deterministic": True,
}


def train(job_dir: Path, data_dir: Path, **fields: object) -> int:
    """Train in this process; return the exit code."""
    values = FIELDS | {"job_dir": job_dir, "data_dir": data_dir} | fields
    return labkit("train", *(f"--{name.replace('_', '-')}={value}" for name, value in values.items()))


def saved_steps(job_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (job_dir / "checkpoints").iterdir())
