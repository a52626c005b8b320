"""What failures cost, by formula: Daly (2006), https://doi.org/10.1016/j.future.2004.11.016."""

import math


def expected_goodput(work: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Return the expected share of time in which steps are made that count.

    It is exact if failures come at random moments with the same mean at all times (Daly's equation 13).

    Args:
        work: seconds of steps between two checkpoints.
        checkpoint: seconds that one takes.
        restart: seconds from a failure to the next step.
        mtbf: mean seconds between two failures.
    """
    exponent = (work + checkpoint) / mtbf
    if exponent + restart / mtbf > 700:  # the limit of a float; nothing is ever done
        return 0.0
    return work / (mtbf * math.exp(restart / mtbf) * math.expm1(exponent))


def best_work(checkpoint: float, mtbf: float) -> float:
    """Return the seconds of work between two checkpoints that lose least, by Daly's equation 37."""
    if checkpoint >= 2 * mtbf:
        return mtbf
    share = checkpoint / (2 * mtbf)
    return math.sqrt(2 * checkpoint * mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint
