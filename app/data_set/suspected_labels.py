"""Labels that are probably wrong, by confident learning (Northcutt et al. 2021, arXiv:1911.00068).

How many labels of each class are wrong is estimated from predictions, which should be out of sample. As many
images are suspected, those whose labels the network contradicts most (pruning by noise rate).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError
from labkit.training.scores import indicators

__all__ = ["IN_SAMPLE_SPLIT", "SuspectedLabels", "find_suspected"]

IN_SAMPLE_SPLIT = "train"  # the network has learned its labels, the wrong ones too


@dataclass(frozen=True, eq=False)
class SuspectedLabels:
    """The suspected images of a split, the most suspicious first.

    ``index``: int64 [m], positions in the split. ``score``: float64 [m] in 0 … 1, the quality of the label:
    low means probably wrong. ``given``, ``suggested``: bool [m, classes]. ``looked_at``: number of images in
    the split.
    """

    index: NDArray[np.int64]
    score: NDArray[np.float64]
    given: NDArray[np.bool_]
    suggested: NDArray[np.bool_]
    looked_at: int

    def __len__(self) -> int:
        return len(self.index)


def find_suspected(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> SuspectedLabels:
    """Return the images whose labels are probably wrong.

    Args:
        labels: int [n]; with several labels per image, zeros and ones [n, classes].
        probabilities: [n, classes], of a network that hasn't seen these labels.

    Raises InputError for probabilities that aren't numbers, as of a network that has diverged.
    """
    count, classes = probabilities.shape
    if len(labels) != count:
        raise InputError(f"there are {len(labels):,} labels and {count:,} predictions; they must be as many")
    if not np.isfinite(probabilities).all():
        raise InputError("the network's probabilities aren't numbers (NaN), so no label can be checked")
    has = indicators(labels, classes)
    if labels.ndim == 2:
        suggested, score = _of_several(has, probabilities)
    else:
        suggested, score = _of_one(labels, probabilities)
    rows = np.flatnonzero((suggested != has).any(axis=1))
    rows = rows[np.argsort(score[rows], kind="stable")]
    return SuspectedLabels(rows.astype(np.int64), score[rows], has[rows], suggested[rows], count)


def _of_one(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return the suggested classes, bool [n, classes], and the scores [n]."""
    count, classes = probabilities.shape
    if len(np.unique(labels)) < 2:  # there is no other class to compare with
        return indicators(labels, classes), np.ones(count)
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    wrong = find_label_issues(labels, probabilities, n_jobs=1)  # more jobs would be forks of this process
    score = np.asarray(get_label_quality_scores(labels, probabilities), np.float64)
    suggested = np.where(wrong, probabilities.argmax(axis=1), labels)
    return indicators(suggested, classes), score


def _of_several(
    has: NDArray[np.bool_], probabilities: NDArray[np.floating]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    varied = np.flatnonzero(has.any(axis=0) & ~has.all(axis=0))
    if not len(varied):
        return has, np.ones(len(has))
    from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class
    from cleanlab.multilabel_classification.rank import get_label_quality_scores

    lists = [np.flatnonzero(row).tolist() for row in has[:, varied]]
    shares = probabilities[:, varied]
    wrong = np.zeros(has.shape, bool)
    wrong[:, varied] = find_multilabel_issues_per_class(lists, shares, n_jobs=1)
    # A class is only added if it is more probable than not, and only removed if it is less.
    suggested = np.where(wrong, probabilities > 0.5, has)
    return suggested, np.asarray(get_label_quality_scores(lists, shares), np.float64)
