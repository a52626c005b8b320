"""How long a run is, and what it writes when."""

from dataclasses import dataclass

from labkit.config.fields import FieldOwner, option

__all__ = ["RunConfig"]


@dataclass(frozen=True)
class RunConfig(FieldOwner):
    """How long, where to, what is written when."""

    job_dir: str | None = option(
        None,
        "run directory (None: <home>/runs/<name made from the configuration>)",
        identity=False,
        is_path=True,
    )
    train_steps: int = option(80000, "training steps of the whole run", minimum=1, maximum=10**9)
    seed: int = option(0, "decides initial weights, epoch order and distortion", minimum=0, below=2**31)
    deterministic: bool = option(False, "bit-identical results for one seed, at some cost of speed")
    log_every_steps: int = option(100, "steps between two lines on the console", minimum=1, identity=False)
    validate_every_steps: int | None = option(
        None, "steps between two validations (None: once an epoch; 0: at the end only)", minimum=0
    )
    checkpoint_every_steps: int | None = option(
        None, "steps between two checkpoints (None: by seconds only)", minimum=1, identity=False
    )
    checkpoint_every_seconds: float | None = option(
        300.0, "seconds between two checkpoints (None: by steps only)", minimum=0, identity=False
    )
    keep_checkpoints: int = option(
        2, "newest checkpoints kept, beside the best on validation", minimum=1, identity=False
    )
    evaluate_test: bool = option(True, "evaluate the test set when training is done", identity=False)
    test_time_augmentation: str = option(
        "none",
        "views of each test image that are averaged, beside the plain result: mirror: two; "
        "mirror_and_shift: six; of no effect where the test set is not evaluated",
        choices=("none", "mirror", "mirror_and_shift"),
        identity=False,
    )
    histograms_every_steps: int = option(
        0, "steps between two sets of weight histograms in events/ (0: none)", minimum=0, identity=False
    )
    write_graph: bool = option(False, "write the training step's graph to events/", identity=False)
    write_images: bool = option(False, "write a batch of distorted images to events/", identity=False)
