"""Cards that show test images with their classes and probabilities, as HTML."""

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.analysis.predictions import Predictions

__all__ = [
    "SMALL",
    "STYLE",
    "bars",
    "change_bars",
    "data_uri",
    "grid",
    "image_tag",
    "picture",
    "sentence",
    "small_grid",
]

SMALL = 64  # pixels of the longer side of an image whose pixels are shown as squares
QUALITY = 90  # of the JPEGs in grids of larger images, a tenth of the bytes

# currentColor and translucent tints fit both the light and the dark theme.
STYLE = """
<style>
.lk-grid {display: grid; grid-template-columns: repeat(auto-fill, minmax(152px, 1fr)); gap: 14px;
          margin: 0 !important; padding: 0 !important; list-style: none}
.lk-card {border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 10px;
          overflow: hidden; margin: 0 !important}
.lk-card.wrong {border-color: #d92d43}
.lk-card img {width: 100%; aspect-ratio: 1; image-rendering: pixelated; display: block; object-fit: contain;
              border-radius: 0}
.lk-text {padding: 8px 10px 10px; font-size: 13px; line-height: 1.4}
.lk-head {display: flex; justify-content: space-between; gap: 6px; font-weight: 600}
.lk-true {opacity: .75; margin-bottom: 6px}
.lk-bar {display: grid; grid-template-columns: 1fr 3.2em; align-items: center; gap: 6px; font-size: 12px}
.lk-name {position: relative; padding: 1px 5px; border-radius: 3px; overflow: hidden; white-space: nowrap;
          text-overflow: ellipsis}
.lk-fill {position: absolute; inset: 0 auto 0 0;
          background: color-mix(in srgb, currentColor 16%, transparent)}
.lk-fill.right {background: rgba(26, 158, 119, .45)}
.lk-fill.given {background: rgba(47, 127, 209, .45)}
.lk-fill.wrong {background: rgba(217, 45, 67, .38)}
.lk-label {position: relative}
.lk-before {position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .7}
.lk-card a {display: block}
.lk-card a:focus-visible {outline: 3px solid #2f7fd1; outline-offset: -3px}
.lk-small {grid-template-columns: repeat(auto-fill, minmax(92px, 1fr)); gap: 10px}
.lk-picture {margin: 0 !important}
.lk-picture img {width: 100%; max-width: 360px; aspect-ratio: 1; image-rendering: pixelated; display: block;
                 object-fit: contain; border-radius: 6px}
.lk-picture figcaption {font-size: 13px; line-height: 1.4; margin-top: 6px; max-width: 360px; opacity: .85}
.lk-share {text-align: right; font-variant-numeric: tabular-nums; opacity: .85}
</style>
"""


def data_uri(image: NDArray[np.uint8]) -> str:
    """Return an image, uint8 [height, width, 1 or 3], as the data URI of a PNG in its original size."""
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def image_tag(image: NDArray[np.uint8], words: str, *, title: bool = False, exact: bool = False) -> str:
    """Return the HTML of an image, as wide as its place.

    Small images show their pixels. Larger ones are drawn smoothly, and compressed where there are many.

    Args:
        image: uint8 [height, width, 1 or 3].
        words: what it shows, for those who can't see it.
        title: whether the words are shown under the pointer, too.
        exact: whether each pixel has to be exact.
    """
    words = html.escape(words.encode(errors="replace").decode(), quote=True)
    large = max(image.shape[:2]) > SMALL
    source = _jpeg(image) if large and not exact else data_uri(image)
    shown = f' title="{words}"' if title else ""
    smooth = ' style="image-rendering:auto"' if large else ""
    return f'<img src="{source}" alt="{words}"{shown}{smooth} loading="lazy">'


def _jpeg(image: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    picture.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def grid(
    predictions: Predictions,
    indices: Iterable[int],
    top: int = 3,
    link: Callable[[int], str] | None = None,
) -> str:
    """Return the HTML of a card for each of these examples, with the ``top`` most probable classes.

    ``link``: the position in the split to the address of the image's own page.
    """
    cards = "".join(_card(predictions, int(index), top, link) for index in indices)
    return f'{STYLE}<ul class="lk-grid">{cards}</ul>'


def _card(predictions: Predictions, index: int, top: int, link: Callable[[int], str] | None) -> str:
    has, given = predictions.has[index], predictions.given[index]
    true, predicted = (predictions.names(classes) for classes in (has, given))
    kind, mark = ("wrong", "✗") if predictions.wrong[index] else ("right", "✓")
    shares = predictions.probabilities[index]
    number = int(predictions.index[index])
    bars_ = _bars(predictions.classes, shares, has, given, top, named=predictions.multi_label)
    shown = _linked(
        image_tag(predictions.images[index], f"Test image {number}: {true}, predicted {predicted}"),
        link(number) if link else None,
    )
    true, predicted = html.escape(true), html.escape(predicted)
    return (
        f'<li class="lk-card {kind}">{shown}'
        f'<div class="lk-text"><div class="lk-head"><span>{mark} {predicted}</span>'
        f'<span style="opacity:.75;font-weight:400">#{number}</span></div>'
        f'<div class="lk-true">true: {true}</div>{bars_}</div></li>'
    )


def _linked(content: str, address: str | None) -> str:
    return f'<a href="{html.escape(address, quote=True)}">{content}</a>' if address else content


def bars(
    classes: Sequence[str],
    shares: NDArray[Any],
    has: NDArray[np.bool_],
    given: NDArray[np.bool_],
    top: int | None = None,
    *,
    known: bool = True,
) -> str:
    """Return the HTML of a bar for each class, the most probable first.

    Args:
        classes: their names.
        shares: probabilities [classes].
        has, given: which classes the image has, and is predicted to have, bool [classes].
        top: how many to show, beside those that the image has or is predicted to have; None: all.
        known: whether ``has`` is known; otherwise no prediction is coloured as right or wrong.
    """
    shown = len(classes) if top is None else top
    return STYLE + _bars(classes, shares, has, given, shown, named=True, known=known)


def _bars(
    classes: Sequence[str],
    shares: NDArray[Any],
    has: NDArray[np.bool_],
    given: NDArray[np.bool_],
    top: int,
    named: bool,
    known: bool = True,
) -> str:
    """``named``: shows all that the image has or is predicted to have."""
    return "".join(
        _bar(
            html.escape(classes[number]),
            float(shares[number]),
            _kind(bool(has[number]), bool(given[number]), known),
        )
        for rank, number in enumerate(np.argsort(-shares, kind="stable"))
        if rank < top or (named and (has[number] or given[number]))
    )


def _kind(has: bool, given: bool, known: bool) -> str:
    """Return the colour of a class's bar, as a name in ``STYLE``."""
    if not known:
        return "given" if given else ""
    return "right" if has else "wrong" if given else ""


def change_bars(
    classes: Sequence[str],
    before: NDArray[Any],
    after: NDArray[Any],
    has: NDArray[np.bool_],
    given: NDArray[np.bool_],
    *,
    known: bool = True,
    top: int = 6,
) -> str:
    """Return the HTML of bars of the probabilities ``after``, with a mark where each was ``before``.

    Args:
        classes: their names.
        before, after: probabilities [classes].
        has, given: which classes the image has, and is now predicted to have, bool [classes].
        known: whether ``has`` is known.
        top: how many to show.
    """
    order = np.argsort(-np.maximum(before, after), kind="stable")[:top]
    rows = "".join(
        _bar(
            html.escape(classes[number]),
            float(after[number]),
            _kind(bool(has[number]), bool(given[number]), known),
            f'<div class="lk-before" style="left:{100 * float(before[number]):.1f}%"></div>',
        )
        for number in order
    )
    return STYLE + rows


def picture(image: NDArray[np.uint8], alt: str, caption: str = "") -> str:
    """Return the HTML of one image, as large as its column allows, with a caption below."""
    words = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'{STYLE}<figure class="lk-picture">{image_tag(image, alt, exact=True)}{words}</figure>'


def sentence(text: str) -> str:
    """Return the HTML of a line of text in bold, which shows any text as it is."""
    return f'<div style="font-weight:600">{html.escape(text)}</div>'


def small_grid(
    images: NDArray[np.uint8],
    names: Sequence[str],
    notes: Sequence[str],
    links: Sequence[str],
    wrong: Sequence[bool] | None = None,
) -> str:
    """Return the HTML of a small card for each image, with the name of its classes, a note and a link.

    ``wrong``: which cards are of a wrong prediction.
    """
    kinds = ["lk-card wrong" if one else "lk-card" for one in wrong or [False] * len(names)]
    cards = "".join(
        f'<li class="{kind}">'
        + _linked(image_tag(image, f"{name}, {note}"), link)
        + f'<div class="lk-text"><b>{html.escape(name)}</b><br>'
        + f"{html.escape(note).replace(', ', '<br>')}</div></li>"
        for image, name, note, link, kind in zip(images, names, notes, links, kinds, strict=True)
    )
    return f'{STYLE}<ul class="lk-grid lk-small">{cards}</ul>'


def _bar(name: str, share: float, kind: str, mark: str = "") -> str:
    width = 100 * min(max(share, 0.0), 1.0) if share == share else 0.0
    return (
        '<div class="lk-bar"><div class="lk-name">'
        f'<div class="lk-fill {kind}" style="width:{width:.1f}%"></div>{mark}'
        f'<span class="lk-label">{name}</span></div><span class="lk-share">{share:.1%}</span></div>'
    )
