"""The train loop says when a step compiles again, and counts it to no average."""

import functools
import re
from types import SimpleNamespace

from labkit.training.engines import StepResult

from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.training.loop import TrainLoop, _Progress
from labkit.training.session import Session
from labkit.training.telemetry import SECONDS_TO_START, Telemetry

STEPS, STEP_SECONDS, COMPILING_SECONDS = 12, 10.0, 10_000.0


class Engine:
    """Makes steps that take as long as they are said to, and looks at the status when one begins."""

    window = 1

    def __init__(self, run: RunDirectory, compiling: set[int]) -> None:
        self._run, self._compiling, self.started = run, compiling, 0
        self.seen: dict[int, tuple[str, float]] = {}

    def stop_is_agreed(self) -> bool:
        return False

    def next_step(self, limit: int) -> StepResult:
        self.started += 1
        status = self._run.read_status()
        self.seen[self.started] = (status.message, status.stalled_after_seconds)
        seconds = COMPILING_SECONDS if self.started in self._compiling else STEP_SECONDS
        return StepResult(
            self.started, {"loss": 1.0, "accuracy": 0.5}, 0.1, seconds, 0.0, 0.0, "worker:0", seconds
        )


def test_other_images_and_a_thaw_are_announced_and_left_out_of_the_average(tmp_path):
    run, lines = RunDirectory(tmp_path / "run"), []
    run.create()
    config = Config.from_flat(
        {"train_steps": STEPS, "train_batch_size": 100, "progressive_resizing": "16:0.25,24:0.5"}
    )
    session = SimpleNamespace(
        config=config,
        manifest=SimpleNamespace(count=lambda split: 1000, splits={}, image_shape=(32, 32, 3), checksum=""),
        plan=SimpleNamespace(asynchronous_workers=0, num_replicas=1),
        freezing=SimpleNamespace(thaws_at={6: "stage2", 9: "stage1"}.get),
        trained_parameters=lambda number: 1000 * number,
        weights_are_finite=lambda: True,
        checkpoint=lambda: None,
    )
    session.image_size_at = functools.partial(Session.image_size_at, session)
    session.steps_per_epoch = Session.steps_per_epoch.fget(session)
    console = SimpleNamespace(
        line=lines.append,
        progress=lambda *words: None,
        start_progress=lambda *words: None,
        stop_progress=lambda: None,
    )
    loop = TrainLoop(session, run, SimpleNamespace(save=lambda *what: None), console)
    loop.progress, loop.extras = _Progress(0), None
    loop.telemetry = Telemetry(run, total_steps=STEPS, first_step=0, resumed=False)
    loop.engine = Engine(run, {1, 4, 7, 10})
    assert loop._train_steps() is None
    loop.telemetry.close()

    *news, last = lines
    assert news == [
        "images of 24 x 24 pixels from step 4 on",
        "stage2 thaws after step 6: 6,000 weights are trained",
        "images of 32 x 32 pixels from step 7 on",
        "stage1 thaws after step 9: 9,000 weights are trained",
    ]
    said = {step: message for step, (message, limit) in loop.engine.seen.items() if limit == SECONDS_TO_START}
    assert said[4] == "images of 24 x 24 pixels"
    assert said[7] == "stage2 thaws; images of 32 x 32 pixels"
    assert said[10] == "stage1 thaws"
    average = float(re.search(r"average (\d+)", last)[1])
    assert average == 100 / STEP_SECONDS, "the compiling steps alone take a hundred times as long"
