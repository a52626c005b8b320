"""Project 1: the training that a student's program makes data parallel, and the test of such a program.

The program uses ``BATCH``, ``RATE``, ``initial_weights``, ``batch`` and ``losses_and_gradient``.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course.lessons.collectives.measure import loss_and_gradient
from course.lessons.verdict import Wrong
from labkit.cluster.local import free_ports
from labkit.startup.process import Child, python_command

BATCH, RATE = 30, 0.2  # images of a global batch; learning rate
IMAGES, FEATURES, HIDDEN, CLASSES = 600, 20, 16, 10
STEP_SECONDS = 0.02  # that a gradient takes at least, so that there is time to kill a worker
STEPS = 60  # of a test
SECONDS = 60.0  # for a program to end
LOSSES = "losses.jsonl"


def initial_weights() -> NDArray[np.float64]:
    """Return the weights before the first step, float64 [weights]."""
    return np.random.default_rng(1).normal(0, 0.2, (FEATURES + CLASSES) * HIDDEN)


def batch(step: int) -> NDArray[np.int64]:
    """Return the indices of the images of a step's global batch, int64 [BATCH]. step: from 1."""
    return np.random.default_rng(step).integers(0, IMAGES, BATCH)


def losses_and_gradient(
    weights: NDArray[np.float64], indices: NDArray[np.int64]
) -> tuple[float, NDArray[np.float64]]:
    """Return the *summed* loss of some images, in nats, and the gradient of this sum, float64 [weights].

    Divide the sums over all workers by ``BATCH``. There must be one image at least.
    """
    random = np.random.default_rng(0)
    images, directions = random.normal(size=(IMAGES, FEATURES)), random.normal(size=(FEATURES, CLASSES))
    labels = (images @ directions).argmax(1).astype(np.int32)
    time.sleep(STEP_SECONDS)
    loss, gradient = loss_and_gradient(weights, images[indices], labels[indices], hidden=HIDDEN)
    return loss * len(indices), gradient * len(indices)


def check_program(program: Path, seed: int) -> str:
    """Return what was verified of a program. Raises Wrong with what isn't so, in one sentence.

    ``seed`` draws the step at which workers are killed.
    """
    kill_at = int(np.random.default_rng([1, seed]).integers(15, 35))
    expected, weights = {}, initial_weights()
    for step in range(1, STEPS + 1):
        loss, gradient = losses_and_gradient(weights, batch(step))
        weights = weights - RATE * gradient / BATCH
        expected[step] = loss / BATCH
    with tempfile.TemporaryDirectory() as folder:
        for workers in (1, 3):
            found = _run(program, Path(folder, f"of-{workers}"), workers)
            _compare(found, expected, f"with {workers} worker{'s' * (workers > 1)}")
        found = _run(program, Path(folder, "one-killed"), 3, [1], kill_at)
        _compare(found, expected, "with 3 workers of which worker 1 was killed")
        all_killed = Path(folder, "all-killed")
        before = _run(program, all_killed, 2, [0, 1], kill_at)
        after = _run(program, all_killed, 2)[len(before) :]
        _compare(before + after, expected, "with 2 workers that were killed and started again")
        if after[0][0] == 1:
            raise Wrong("after all were killed and started again, it began with step 1; load the checkpoint")
    return "the losses are those of one process with 3 workers, after a kill, and after a restart"


def _run(
    program: Path, folder: Path, workers: int, kill: Sequence[int] = (), kill_at: int = 0
) -> list[tuple[int, float]]:
    """Run the program; kill some workers once a step is seen. Returns steps and losses written."""
    folder.mkdir(exist_ok=True)
    ports = ",".join(map(str, free_ports("127.0.0.1", workers)))
    give_up = time.monotonic() + SECONDS
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "output.txt", "wb"))
        children = []
        for rank in range(workers):
            words = {"rank": rank, "ports": ports, "steps": STEPS, "folder": folder}
            flags = [word for name, value in words.items() for word in (f"--{name}", value)]
            children.append(stack.enter_context(Child(python_command(program, *flags), stdout=log)))
        if kill:
            while not any(step >= kill_at for step, _ in _losses(folder)):
                if time.monotonic() > give_up or all(child.poll() is not None for child in children):
                    raise Wrong(f"{workers} workers didn't reach step {kill_at} of {STEPS}; {_said(folder)}")
                time.sleep(0.02)
            for rank in kill:
                children[rank].kill()
        for rank, child in enumerate(children):
            code = child.wait(max(0.0, give_up - time.monotonic()))
            if rank not in kill and code != 0:
                how = "still ran" if code is None else f"ended with exit code {code}"
                after = f" after worker {kill[0]} was killed" if kill else ""
                raise Wrong(
                    f"worker {rank} of {workers} {how} after at most {SECONDS:.0f} s{after}; {_said(folder)}"
                )
    return _losses(folder)


def _losses(folder: Path) -> list[tuple[int, float]]:
    """Return the steps and losses that were written; a last line that isn't whole doesn't count."""
    path = folder / LOSSES
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return [(int(row["step"]), float(row["loss"])) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise Wrong(f'{LOSSES} needs lines such as {{"step": 1, "loss": 2.3}}, written whole') from None


def _said(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").split("\n")
    said = [line for line in lines if line.strip()]
    return f"its last words: {said[-1][:200]}" if said else "it printed nothing"


def _compare(found: list[tuple[int, float]], expected: dict[int, float], how: str) -> None:
    missing = [step for step in expected if step not in dict(found)]
    if missing:
        raise Wrong(f"{how}, {LOSSES} has no loss of step {missing[0]} of {STEPS}")
    for step, loss in found:
        if not np.isclose(loss, expected.get(step, np.nan), rtol=1e-4):
            raise Wrong(
                f"{how}, the loss of step {step} is {loss:.6g}, of one process it is "
                f"{expected.get(step, np.nan):.6g}; does every image of a batch count once?"
            )
