"""Images on pages and in reports: cards in a grid, bars of probabilities, and single images, as HTML.

Every text of users is escaped here. The style is ``assets/cards.css``.
"""

import base64
import html
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image

from app.address import image_address
from app.markup import number_text, plain, visible
from labkit.analysis.predictions import Predictions
from labkit.errors import InputError
from labkit.plurals import numbers_in_words

SMALL = 64  # pixels of the longer side of an image whose pixels are shown as squares
NARROW = 92  # pixels of a card whose lines are short
QUALITY = 90  # of the JPEGs in grids of larger images, a tenth of the bytes
STYLE = Path(__file__).parent / "assets" / "cards.css"


# ---- one image -------------------------------------------------------------------------------------------


def pil_image(image: NDArray[np.uint8]) -> Image.Image:
    """Return an image, uint8 [height, width, 1 or 3], as Pillow has it."""
    return Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)


def shrunk(images: NDArray[np.uint8], longest: int, method: Image.Resampling) -> NDArray[np.uint8]:
    """Return images, uint8 [n, height, width, channels], with no side longer than ``longest`` pixels."""
    height, width = images.shape[1:3]
    share = longest / max(height, width)
    if share >= 1 or not len(images):
        return images
    size = max(1, round(width * share)), max(1, round(height * share))
    small = np.empty((len(images), size[1], size[0], images.shape[3]), np.uint8)
    for number, image in enumerate(images):
        small[number] = np.asarray(pil_image(image).resize(size, method)).reshape(small.shape[1:])
    return small


def data_uri(image: Image.Image | NDArray[np.uint8], kind: str = "PNG", **settings: Any) -> str:
    """Return an image as a data URI in its original size. ``settings``: of Pillow, for this kind of file."""
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else pil_image(image)).save(buffer, kind, **settings)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


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
    compressed = large and not exact
    source = data_uri(image, "JPEG", quality=QUALITY, subsampling=0) if compressed else data_uri(image)
    shown = f' title="{words}"' if title else ""
    smooth = ' style="image-rendering:auto"' if large else ""
    return f'<img src="{source}" alt="{words}"{shown}{smooth} loading="lazy">'


def picture(image: NDArray[np.uint8], alt: str, caption: str = "") -> str:
    """Return the HTML of one image, as large as its column allows, with a caption below."""
    words = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="lk-picture">{image_tag(image, alt, exact=True)}{words}</figure>'


def sentence(text: str) -> str:
    """Return the HTML of a line of text in bold, which shows any text as it is."""
    return f'<div style="font-weight:600">{html.escape(text)}</div>'


# ---- cards -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Card:
    """An image with lines of text below it.

    Args:
        image: uint8 [height, width, 1 or 3].
        lines: each a text, or a text that may be cut and a value to its right. The first is bold.
        link: address that a click opens; empty: none.
        kind: ``right`` or ``wrong``, which has a red frame, or empty.
        alt: what the image shows; empty: the lines.
        below: HTML.
        tick: the value of a box to tick; empty: there is none.
    """

    image: NDArray[np.uint8]
    lines: Sequence[str | tuple[str, str]]
    link: str = ""
    kind: str = ""
    alt: str = ""
    below: str = ""
    tick: str = ""

    @property
    def words(self) -> str:
        """What the image shows, for those who can't see it."""
        return visible(
            self.alt or ", ".join(line if isinstance(line, str) else line[0] for line in self.lines)
        )

    def picture(self) -> str:
        """Return the HTML of the image with its link."""
        shown = image_tag(self.image, self.words, title=True)
        return f'<a href="{html.escape(self.link, quote=True)}">{shown}</a>' if self.link else shown

    def box(self) -> str:
        """Return the HTML of the box to tick; "" without one."""
        if not self.tick:
            return ""
        value, words = (html.escape(text, quote=True) for text in (self.tick, f"Tick {self.words}"))
        return f'<label class="lk-tick"><input type="checkbox" value="{value}" aria-label="{words}"></label>'


def grid(cards: Iterable[Card], width: int = 110) -> str:
    """Return the HTML of the cards in rows, each at least ``width`` pixels wide."""
    shown = "".join(
        f'<li class="{f"lk-card {card.kind}".strip()}">{card.box()}{card.picture()}'
        f'<div class="lk-text">{"".join(map(_line, card.lines))}{card.below}</div></li>'
        for card in cards
    )
    return f'<ul class="lk-grid" style="--lk-width:{width}px">{shown}</ul>'


@contextmanager
def readable() -> Iterator[None]:
    """Say so where the images that are drawn in a block can't be read, as of a data set that is gone."""
    try:
        yield
    except InputError as error:
        st.warning(plain(f"The images can't be read: {error}"), icon=":material/image_not_supported:")


def strip(cards: Iterable[Card]) -> str:
    """Return the HTML of small images in rows, whose text is shown under the pointer."""
    return f'<ul class="lk-strip">{"".join(f"<li>{card.picture()}</li>" for card in cards)}</ul>'


def _line(line: str | tuple[str, str]) -> str:
    if isinstance(line, str):
        return f"<div>{html.escape(visible(line))}</div>"
    text, value = html.escape(visible(line[0]), quote=True), html.escape(line[1])
    return f'<div class="lk-line"><span title="{text}">{text}</span><span>{value}</span></div>'


def prediction_cards(
    predictions: Predictions,
    positions: Iterable[int],
    split: str = "test",
    note: Callable[[int], str] = lambda position: "",
    *,
    linked: bool = False,
    top: int = 0,
) -> list[Card]:
    """Return a card for each of these examples, with what is predicted for it.

    Args:
        predictions: of a split.
        positions: of the examples among the predictions.
        split: its name.
        note: a position among the predictions to a last line, or nothing.
        linked: whether a click opens the image's own page.
        top: how many of the most probable classes have a bar.

    Raises InputError if the images are read from a data set that is gone.
    """
    wanted = np.asarray(list(positions), np.int64)
    images = predictions.images[wanted] if len(wanted) else ()
    cards = []
    for position, image in zip(wanted.tolist(), images, strict=True):
        shares, number = predictions.probabilities[position], int(predictions.index[position])
        link, alt = image_address(split, number) if linked else "", f"{split.capitalize()} image {number}"
        if predictions.are_numbers:
            names, label = predictions.classes, predictions.labels[position]
            said = [f"{name} {value:.4g}" for name, value in zip(names, shares.tolist(), strict=True)]
            alt += f": {numbers_in_words(label, names)}, predicted {said[0]}"
            said += [f"true: {', '.join(f'{value:.4g}' for value in label.tolist())}", note(position)]
            cards.append(Card(image, [*filter(None, said)], link, alt=alt))
            continue
        has, given = predictions.has[position], predictions.given[position]
        true, wrong = predictions.names(has), bool(predictions.wrong[position])
        single = not predictions.multi_label
        share = percent(float(shares[int(predictions.labels[position])])) if wrong and single else ""
        lines: list[str | tuple[str, str]] = [verdict(predictions, position), (f"true: {true}", share)]
        if last := note(position):
            lines.append((last, ""))
        alt += f": {true}, predicted {predictions.names(given)}"
        below = bars(predictions.classes, shares, has, given, top, named=not single) if top else ""
        cards.append(Card(image, lines, link, "wrong" if wrong else "right", alt, below))
    return cards


def verdict(predictions: Predictions, position: int, name: str = "") -> tuple[str, str]:
    """Return the line of a card with the predicted classes and, of a single one, its probability."""
    mark = "✗" if predictions.wrong[position] else "✓"
    share = "" if predictions.multi_label else percent(float(predictions.confidence[position]))
    return f"{name}{mark} {predictions.names(predictions.given[position])}", share


def percent(share: float) -> str:
    """Return a share in whole percent, near 100 % with a decimal."""
    return "–" if share != share else number_text(share, ".0%" if share < 0.995 else ".1%")


# ---- bars ------------------------------------------------------------------------------------------------


def bars(
    classes: Sequence[str],
    shares: NDArray[Any],
    has: NDArray[np.bool_],
    given: NDArray[np.bool_],
    top: int | None = None,
    *,
    known: bool = True,
    named: bool = True,
    before: NDArray[Any] | None = None,
) -> str:
    """Return the HTML of a bar for each class, the most probable first.

    Args:
        classes: their names.
        shares: probabilities [classes].
        has, given: which classes the image has, and is predicted to have, bool [classes].
        top: how many to show; None: all.
        known: whether ``has`` is known; otherwise no prediction is coloured as right or wrong.
        named: whether all are shown that the image has or is predicted to have, beside the ``top`` ones.
        before: earlier probabilities [classes]; a mark shows where each was.
    """
    order = np.argsort(-(shares if before is None else np.maximum(before, shares)), kind="stable")
    rows = []
    for rank, number in enumerate(order.tolist()):
        if top is not None and rank >= top and not (named and (has[number] or given[number])):
            continue
        share = float(shares[number])
        width = 100 * min(max(share, 0.0), 1.0) if share == share else 0.0
        kind = ("right" if has[number] else "wrong") if known else "given"
        kind = kind if given[number] or kind == "right" else ""
        mark = ""
        if before is not None:
            mark = f'<div class="lk-before" style="left:{100 * float(before[number]):.1f}%"></div>'
        rows.append(
            '<div class="lk-bar"><div class="lk-name">'
            f'<div class="lk-fill {kind}" style="width:{width:.1f}%"></div>{mark}'
            f'<span class="lk-label">{html.escape(classes[number])}</span></div>'
            f'<span class="lk-share">{number_text(share, ".1%")}</span></div>'
        )
    return "".join(rows)
