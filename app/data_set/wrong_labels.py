"""Labels that are probably wrong, by confident learning (Northcutt et al. 2021, arXiv:1911.00068).

How many labels of each class are wrong is estimated from predictions, which should be out of sample. As many
images are suspected, those whose labels the network contradicts most (pruning by noise rate).
"""

from dataclasses import dataclass, replace

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import background
from app.address import image_address, page_below
from app.ask.client import AskedNetwork
from app.data_set.overview import read_images
from app.data_set.scan import DataScan
from app.images import answers, cards, marking
from app.images.subject import name_of, names_of, split_control
from labkit.data.marks import KEEP
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.training.scores import indicators

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


PAGE_SIZE = 24


def wrong_labels(run: RunDirectory, scan: DataScan) -> None:
    """Draw the choice of a split and its suspected labels, once the reader asks for them."""
    st.caption(
        "Confident learning estimates from the network's predictions how many labels of each class are "
        "wrong, and lists the images whose labels it contradicts most. The network may be wrong instead, so "
        "look before you change a label."
    )
    step = answers.pinned_step(run, "labels")
    if step is None:
        answers.no_checkpoint(run)
        return
    splits = [name for name, found in scan.splits.items() if len(found)]
    split = split_control(splits, "labels-split")
    _what_it_is_worth(split)
    wanted = f"labels-wanted-{run.path}-{split}-{step}"
    count = len(scan.splits[split])
    if not st.session_state.get(wanted):
        st.button(
            f"Look through the {count:,} {split} images",
            icon=":material/search:",
            on_click=lambda: st.session_state.update({wanted: True}),
            help=f"The network of step {step:,} predicts all of them, at some hundred images per second.",
        )
        return
    asked = _asked(run, scan, split, step)
    if (found := background.shown(asked, f"Predicting the {split} images", "labels")) is not None:
        _found(scan, split, step, _not_kept(scan, split, found))
        marking.summary(run, scan.manifest)


def _not_kept(scan: DataScan, split: str, found: SuspectedLabels) -> SuspectedLabels:
    """Return the suspected labels without those that somebody has looked at and found right."""
    marks = marking.known_marks(scan.manifest)
    said = marks.marks.get(split, {}) if marks is not None else {}
    kept = np.array([row in said and said[row].mark == KEEP for row in found.index.tolist()], bool)
    if kept.any():
        count = counted(int(kept.sum()), "image")
        st.caption(f"Left out: {count} whose label somebody marked as right.")
    arrays = ("index", "score", "given", "suggested")
    return replace(found, **{name: getattr(found, name)[~kept] for name in arrays})


def _what_it_is_worth(split: str) -> None:
    if split == IN_SAMPLE_SPLIT:
        st.warning(
            "The network was trained on these labels, so its predictions are in sample: it has learned many "
            "wrong labels by heart. Take the list as a hint; it misses most wrong labels of a long training.",
            icon=":material/info:",
        )
    else:
        best = " The checkpoint may have been chosen by them." if split == "validation" else ""
        st.caption(f"Out of sample: the network wasn't trained on these images.{best}")


def _asked(run: RunDirectory, scan: DataScan, split: str, step: int) -> answers.Asked[SuspectedLabels]:
    labels = scan.splits[split].labels

    def work(network: AskedNetwork, progress: background.Progress) -> SuspectedLabels:
        probabilities = network.evaluate(split, step, progress).probabilities
        if len(labels) != len(probabilities):
            raise InputError("the data set was prepared again meanwhile; reload the page")
        return find_suspected(labels, probabilities)

    return answers.ask(run, step, ("suspected", split, scan.manifest.checksum), work)


def _found(scan: DataScan, split: str, step: int, found: SuspectedLabels) -> None:
    if not len(found):
        st.success(
            f"No label of the {found.looked_at:,} {split} images is suspected by the network of step "
            f"{step:,}.",
            icon=":material/check_circle:",
        )
        return
    page, above = page_below(len(found), PAGE_SIZE, "labels-page", (split, step, found.index.tobytes()))
    with above, cards.readable():
        st.write(
            f"**{len(found):,} of {found.looked_at:,} labels are suspected** by the network of step "
            f"{step:,}, the most suspicious first. The score is the quality of the label, from 0 to 1."
        )
        images, _ = read_images(scan.manifest, split, found.index[page])
        marking.grid(scan.manifest, [("", _cards(scan, split, found, page, images))], 132, "labels-grid")


def _cards(
    scan: DataScan, split: str, found: SuspectedLabels, part: slice, images: "np.ndarray"
) -> list[marking.Markable]:
    columns = (values[part] for values in (found.suggested, found.given, found.score, found.index))
    classes = scan.names
    return [
        marking.Markable(
            cards.Card(
                image,
                [
                    f"{names_of(classes, suggested)}?",
                    f"given: {names_of(classes, given)}",
                    f"score {score:.3f}" if score >= 0.0005 else "score < 0.001",
                    name_of(scan.manifest, split, int(index)),
                ],
                image_address(split, int(index)),
            ),
            split,
            int(index),
            int(given.argmax()),
            int(suggested.argmax()),
        )
        for image, suggested, given, score, index in zip(images, *columns, strict=True)
    ]
