"""Learning-rate range test (Smith, "Cyclical learning rates", 2017, arXiv:1506.01186, section 3.3).

The learning rate grows by a constant factor at each step of one short training. It writes no run.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.config.config import flags_of
from labkit.errors import InputError
from labkit.experiments.profile import engine_of_first_step, network_without_run
from labkit.tables import html_table, text_table

STEPS = 100
LOWEST, HIGHEST = 1e-5, 100.0
BESIDE = 8  # steps to either side of one through which a line is fitted: a little over a decade of rates
EXPLODED = 3.0  # times the first loss, by which the mean of nine steps rises above the lowest such mean
STANDARD_ERRORS = 4.0  # by which the lowest loss has to lie below the first ones, or batches explain it
_SHOWN_EVERY = 5


@dataclass(frozen=True, repr=False)
class RangeTest:
    """The losses of a range test. A notebook displays it as a table; ``labkit.figures.range_test`` draws it.

    ``rates``, ``losses``: of each step, float64 [steps]; the losses are those before the update. ``ended``:
    in words why the test ended. ``config``: of the training that was tested.
    """

    config: Config
    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    ended: str

    @property
    def smoothed(self) -> NDArray[np.float64]:
        """The straight line through the losses around each step, at this step, float64 [steps]."""
        return _lines(self.losses)[0]

    @property
    def suggestion(self) -> float | None:
        """The learning rate at which the smoothed loss falls fastest; None where it doesn't fall."""
        smoothed, slopes, deviation = _lines(self.losses)
        lowest = int(smoothed.argmin())
        error = deviation * math.sqrt(1 / (BESIDE + 1) + 1 / (2 * BESIDE + 1))
        fall = float(self.losses[: BESIDE + 1].mean() - smoothed[lowest])
        falling = slice(BESIDE, min(lowest + 1, len(slopes) - BESIDE))
        if fall <= STANDARD_ERRORS * error or not len(slopes[falling]):
            return None
        return float(f"{self.rates[falling][slopes[falling].argmin()]:.2g}")

    @property
    def reason(self) -> str:
        """Why this rate is suggested, or why none is, in words."""
        lowest = int(self.smoothed.argmin())
        fall = f"from {self.smoothed[0]:.4g} to {self.smoothed[lowest]:.4g}"
        if self.suggestion is None:
            return (
                f"no learning rate is suggested: the loss doesn't fall by more than batches differ ({fall}); "
                "take a larger --train-batch-size, and look whether the network learns at all"
            )
        return (
            f"there the smoothed loss falls fastest; it falls {fall} at {self.rates[lowest]:.2g}, and rates "
            f"between the two are worth trying, too; {self.ended}"
        )

    @property
    def flags(self) -> list[str]:
        """The flags of ``labkit train`` for the suggestion, also for Muon's kernels; none without it."""
        if self.suggestion is None:
            return []
        optimizer, values = self.config.optimizer, {"learning_rate": self.suggestion}
        if optimizer.optimizer == "muon":  # whose rate was raised in proportion
            factor = optimizer.muon_learning_rate / optimizer.learning_rate
            values["muon_learning_rate"] = float(f"{factor * self.suggestion:.2g}")
        return flags_of(values)

    @property
    def conclusion(self) -> str:
        """The suggestion with its reason, in one sentence."""
        taken = f"suggested: {' '.join(self.flags)}; " if self.flags else ""
        return taken + self.reason

    def rows(self, every: int = 1) -> list[tuple[str, ...]]:
        """Return the table: the header, then a row for each step, or for one of ``every``."""
        values = zip(self.rates, self.losses, self.smoothed, strict=True)
        lines = [
            (str(step), f"{rate:.2e}", f"{loss:.4f}", f"{smooth:.4f}")
            for step, (rate, loss, smooth) in enumerate(values, 1)
        ]
        return [("step", "learning rate", "loss", "smoothed"), *lines[::every]]

    def __str__(self) -> str:
        return f"{text_table(self.rows(_SHOWN_EVERY), left_columns=0)}\n{self.conclusion}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, *rows = self.rows(_SHOWN_EVERY)
        return html_table(header, rows, caption="Learning-rate range test") + f"<p>{self.conclusion}</p>"


def _lines(losses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit a straight line to each loss and its neighbours.

    Returns its value there and its slope, float64 [steps], and the median deviation of losses from a line.
    """
    values, slopes, deviations = np.zeros((3, len(losses)))
    for step in range(len(losses)):
        places = np.arange(max(0, step - BESIDE), min(len(losses), step + BESIDE + 1))
        offsets, near = places - places.mean(), losses[places]
        slopes[step] = float((offsets * near).sum()) / max(float((offsets**2).sum()), 1.0)
        values[step] = near.mean() + slopes[step] * (step - places.mean())
        left = near - near.mean() - slopes[step] * offsets
        deviations[step] = math.sqrt((left**2).sum() / max(len(left) - 2, 1))
    return values, slopes, float(np.median(deviations))


def range_test(config: Config) -> RangeTest:
    """Train ``STEPS`` steps with growing learning rates, from the initial weights of a training.

    Each step has its own batch, that of the training. Its schedule has no effect, images don't grow and
    layers don't thaw.

    Args:
        config: of the training; its run directory isn't touched.

    Raises InputError, before anything is computed, if the configuration can't be trained on this machine, and
    where not even the first loss is a number.
    """
    network = network_without_run(config, print)
    from labkit.training.checkpoints import prepare_transfer

    network.begin(prepare_transfer(network.config, network.manifest, network.model))
    rates = np.geomspace(LOWEST, HIGHEST, STEPS)
    engine = engine_of_first_step(network, STEPS, learning_rate_at=lambda step: rates[step])
    losses: list[float] = []
    recent: list[float] = []  # means of the last steps
    ended = f"the test ended at {HIGHEST:g}"
    for rate in rates:
        loss = engine.next_step().metrics["loss"]
        if not math.isfinite(loss):
            ended = f"at {rate:.2g} the loss was {loss}"
            break
        losses.append(loss)
        recent.append(float(np.mean(losses[-BESIDE - 1 :])))
        if recent[-1] - min(recent) > EXPLODED * abs(losses[0]):
            ended = f"at {rate:.2g} the loss had exploded"
            break
    if not losses:
        raise InputError(f"the loss of the first batch is {loss}; look at it with --check-numerics")
    return RangeTest(network.config, rates[: len(losses)], np.array(losses), ended)
