"""The predictions of a run in a report: the confusion matrix and the most confident mistakes."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.images import cards
from app.report.markup import escaped, note, section, table
from labkit.analysis.predictions import Predictions, load_predictions, of_another_checkpoint
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

__all__ = ["predictions_html"]

MISTAKES = 24
MOST_PIXELS = 160  # of each side of an image: its card is as wide
MAX_CLASSES = 30  # of a matrix that is shown whole
MOST_FREQUENT = 20  # confusions that are listed for more classes


def predictions_html(run: RunDirectory) -> str:
    """Return the predictions for the test split as HTML; nothing if the run has none."""
    try:
        predictions = load_predictions(run)
    except FileNotFoundError:
        return ""
    except InputError as error:
        return section("Predictions", note(f"{error}"), 3)
    other = of_another_checkpoint(run, predictions)
    wrong = predictions.select(wrong_only=True)[:MISTAKES]
    title = f"The {counted(len(wrong), 'most confident mistake')} on the test split"
    grid = cards.grid(_part(predictions, wrong), range(len(wrong))).replace(' loading="lazy"', "")
    said = note(f"{other[0].upper()}{other[1:]}.") if other else ""
    return said + _confusion(predictions) + (section(title, grid, 3) if len(wrong) else "")


def _part(predictions: Predictions, kept: NDArray[np.intp]) -> Predictions:
    """Return some of the predictions, their images no larger than they are drawn."""
    images = predictions.images[kept]
    height, width = images.shape[1:3]
    if max(height, width) > MOST_PIXELS and len(images):
        scale = MOST_PIXELS / max(height, width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        images = np.stack([_resized(image, size) for image in images])
    return replace(
        predictions,
        images=images,
        labels=predictions.labels[kept],
        probabilities=predictions.probabilities[kept],
        index=predictions.index[kept],
    )


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS), np.uint8).reshape(
        size[1], size[0], image.shape[-1]
    )


def _confusion(predictions: Predictions) -> str:
    """Return the confusion matrix; of many classes the most frequent confusions."""
    classes = predictions.classes
    if predictions.multi_label or not len(predictions):
        return ""
    if len(classes) > MAX_CLASSES:
        rows = [
            (classes[true], classes[given], f"{count:,}")
            for true, given, count in predictions.most_confused(MOST_FREQUENT)
        ]
        return section(
            "The most frequent confusions on the test split", table(("True", "Predicted", "Images"), rows), 3
        )
    counts = predictions.confusion
    assert counts is not None
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = counts / totals
    head = "".join(f'<th scope="col"><span>{escaped(name)}</span></th>' for name in classes)
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>'
        + "".join(
            _cell(int(counts[true, given]), float(shares[true, given])) for given in range(len(classes))
        )
        + "</tr>"
        for true, name in enumerate(classes)
    )
    matrix = (
        '<div class="wide"><table class="confusion"><caption>Rows: true class. Columns: predicted class. The '
        f"colour of a cell is its share of the row.</caption><thead><tr><td></td>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
    return section("Confusion matrix of the test split", matrix, 3)


def _cell(count: int, share: float) -> str:
    # From one half on, the text is white. Between 0.5 and 0.8 no text would have a contrast of 4.5.
    strong, shown = (' class="strong"', 0.6 + 0.4 * share) if share > 0.5 else ("", share)
    return f'<td{strong} style="--share:{shown:.3f}">{count or ""}</td>'
