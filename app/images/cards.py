"""Cards that show test images with their classes and probabilities, as HTML."""

import base64
import html
import io
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.analysis.predictions import Predictions

__all__ = ["data_uri", "grid"]

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
.lk-fill.wrong {background: rgba(217, 45, 67, .38)}
.lk-label {position: relative}
.lk-share {text-align: right; font-variant-numeric: tabular-nums; opacity: .85}
</style>
"""


def data_uri(image: NDArray[np.uint8]) -> str:
    """Return an image, uint8 [height, width, 1 or 3], as the data URI of a PNG in its original size."""
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def grid(predictions: Predictions, indices: Iterable[int], top: int = 3) -> str:
    """Return the HTML of a card for each of these examples, with the ``top`` most probable classes."""
    cards = "".join(_card(predictions, int(index), top) for index in indices)
    return f'{STYLE}<ul class="lk-grid">{cards}</ul>'


def _card(predictions: Predictions, index: int, top: int) -> str:
    has, given = predictions.has[index], predictions.given[index]
    true, predicted = (html.escape(predictions.names(classes)) for classes in (has, given))
    kind, mark = ("wrong", "✗") if predictions.wrong[index] else ("right", "✓")
    shares = predictions.probabilities[index]
    shown = [
        number
        for rank, number in enumerate(np.argsort(-shares, kind="stable"))
        if rank < top or (predictions.multi_label and (has[number] or given[number]))
    ]
    bars = "".join(
        _bar(
            html.escape(predictions.classes[number]),
            float(shares[number]),
            "right" if has[number] else "wrong" if given[number] else "",
        )
        for number in shown
    )
    number = int(predictions.index[index])
    return (
        f'<li class="lk-card {kind}"><img src="{data_uri(predictions.images[index])}" loading="lazy" '
        f'alt="Test image {number}: {true}, predicted {predicted}">'
        f'<div class="lk-text"><div class="lk-head"><span>{mark} {predicted}</span>'
        f'<span style="opacity:.55">#{number}</span></div>'
        f'<div class="lk-true">true: {true}</div>{bars}</div></li>'
    )


def _bar(name: str, share: float, kind: str) -> str:
    width = 100 * min(max(share, 0.0), 1.0) if share == share else 0.0
    return (
        '<div class="lk-bar"><div class="lk-name">'
        f'<div class="lk-fill {kind}" style="width:{width:.1f}%"></div>'
        f'<span class="lk-label">{name}</span></div><span class="lk-share">{share:.1%}</span></div>'
    )
