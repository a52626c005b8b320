"""Small cards of many images, with what is predicted for each, as HTML."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from app.images.cards import image_tag
from app.images.text import visible
from app.predictions.pairs import Pair
from labkit.analysis.predictions import Predictions

__all__ = ["pair_tiles", "tiles"]

# currentColor and translucent tints fit both the light and the dark theme.
STYLE = """<style>
.lk-tiles {display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 8px;
           margin: 0 !important; padding: 0 !important; list-style: none; scroll-margin-top: 4rem}
.lk-tile {border: 1px solid color-mix(in srgb, currentColor 22%, transparent); border-radius: 8px;
          overflow: hidden; margin: 0 !important; padding: 0 !important; min-width: 0}
.lk-tile.wrong {border-color: #d92d43}
.lk-tile a {display: block}
.lk-tile a:focus-visible {outline: 3px solid #2f7fd1; outline-offset: -3px}
.lk-tile img {width: 100%; aspect-ratio: 1; image-rendering: pixelated; display: block; object-fit: contain;
              border-radius: 0}
.lk-line {display: flex; justify-content: space-between; gap: 4px; padding: 0 6px; font-size: 12px;
          line-height: 1.45}
.lk-line:last-child {padding-bottom: 4px}
.lk-line span {overflow: hidden; text-overflow: ellipsis; white-space: nowrap}
.lk-line span + span {flex: none; font-variant-numeric: tabular-nums}
.lk-line.strong {font-weight: 600; padding-top: 3px}
.lk-line.quiet {opacity: .8}
</style>"""

Link = Callable[[int], str]


def tiles(
    predictions: Predictions,
    positions: Iterable[int],
    split: str,
    link: Link,
    note: Callable[[int], str] = lambda position: "",
) -> str:
    """Return the HTML of a small card for each of these examples.

    Args:
        predictions: of a split.
        positions: of the examples among the predictions.
        split: its name.
        link: the position in the split to the address of the image's own page.
        note: a position among the predictions to a last line, or nothing.

    Raises InputError if the images are read from a data set that is gone.
    """
    wanted = np.asarray(list(positions), np.int64)
    images = predictions.images[wanted] if len(wanted) else ()
    cards = "".join(
        _tile(predictions, position, image, split, link, note(position))
        for position, image in zip(wanted.tolist(), images, strict=True)
    )
    return f'{STYLE}<ul class="lk-tiles">{cards}</ul>'


def _tile(
    predictions: Predictions, position: int, image: NDArray[np.uint8], split: str, link: Link, note: str
) -> str:
    true = predictions.names(predictions.has[position])
    lines = [_verdict(predictions, position, ""), _line(f"true: {true}", _true_share(predictions, position))]
    if note:
        lines.append(_line(note, ""))
    kind = "wrong" if predictions.wrong[position] else "right"
    predicted = predictions.names(predictions.given[position])
    return _card(
        kind, image, int(predictions.index[position]), split, link, f"{true}, predicted {predicted}", lines
    )


def _card(
    kind: str,
    image: NDArray[np.uint8],
    number: int,
    split: str,
    link: Link,
    words: str,
    lines: Sequence[str],
) -> str:
    alt = visible(f"{split.capitalize()} image {number}: {words}")
    return (
        f'<li class="lk-tile {kind}"><a href="{escape(link(number), quote=True)}" '
        f'title="{escape(alt, quote=True)}">{image_tag(image, alt)}</a>{"".join(lines)}</li>'
    )


def _verdict(predictions: Predictions, position: int, name: str) -> str:
    mark = "✗" if predictions.wrong[position] else "✓"
    given = predictions.names(predictions.given[position])
    share = "" if predictions.multi_label else _percent(float(predictions.confidence[position]))
    return _line(f"{name}{mark} {given}", share, "strong")


def _true_share(predictions: Predictions, position: int) -> str:
    if predictions.multi_label or not predictions.wrong[position]:
        return ""
    return _percent(float(predictions.probabilities[position, int(predictions.labels[position])]))


def _percent(share: float) -> str:
    return "–" if share != share else f"{share:.0%}" if share < 0.995 else f"{share:.1%}"


def _line(text: str, value: str, kind: str = "quiet") -> str:
    text = visible(text)
    shown = escape(text)
    return (
        f'<div class="lk-line {kind}"><span title="{escape(text, quote=True)}">{shown}</span>'
        f"<span>{escape(value)}</span></div>"
    )


def pair_tiles(pair: Pair, places: Iterable[int], split: str, link: Link) -> str:
    """Return the HTML of a small card for each of these common images, with both predictions.

    Raises InputError if the images are read from a data set that is gone.
    """
    wanted = np.asarray(list(places), np.int64)
    in_a, in_b = pair.in_a[wanted], pair.in_b[wanted]
    images = pair.a.images[in_a] if len(wanted) else ()
    cards = []
    for a, b, image in zip(in_a.tolist(), in_b.tolist(), images, strict=True):
        true, first, second = (
            predictions.names(classes)
            for predictions, classes in (
                (pair.a, pair.a.has[a]),
                (pair.a, pair.a.given[a]),
                (pair.b, pair.b.given[b]),
            )
        )
        lines = [
            _verdict(pair.a, a, "A "),
            _verdict(pair.b, b, "B "),
            _line(f"true: {true}", ""),
        ]
        words = f"{true}, predicted {first} by A and {second} by B"
        kind = "wrong" if pair.a.wrong[a] and pair.b.wrong[b] else "right"
        cards.append(_card(kind, image, int(pair.a.index[a]), split, link, words, lines))
    return f'{STYLE}<ul class="lk-tiles">{"".join(cards)}</ul>'
