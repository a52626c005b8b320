"""Small figures of calibration and of precision against recall, as SVG that fits both themes."""

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from app.images.text import visible
from app.predictions.calibration import Calibration, PrecisionRecall

__all__ = ["calibration_figure", "precision_recall_figures"]

BLUE, ORANGE = "#2f7fd1", "#d9772b"
WIDTH, HEIGHT, COUNTS = 350, 190, 58  # of the diagram, and of the bars below it
LEFT, TOP, GAP, BOTTOM = 38, 8, 22, 34
POINTS = 60  # of a drawn curve


def calibration_figure(found: Calibration, axis: str, frequency: str) -> str:
    """Return the reliability diagram with the number of probabilities in each bin below it.

    Args:
        found: the bins.
        axis, frequency: names of the two axes.
    """
    bins = len(found.counts)
    step = WIDTH / bins
    parts = [_frame(), _diagonal()]
    for place in range(bins):
        if not found.counts[place]:
            continue
        mean, true = float(found.confidence[place]), float(found.frequency[place])
        left = LEFT + place * step
        top, end = _y(max(mean, true)), _y(min(mean, true))
        count = f"{int(found.counts[place]):,}"
        limits = f"{place / bins:.2f}–{(place + 1) / bins:.2f}"
        words = escape(f"{limits}: {count} · {axis} {mean:.3f} · {frequency} {true:.3f}")
        colour = ORANGE if mean > true else BLUE
        parts.append(
            f"<g><title>{words}</title>"
            f'<rect x="{left + 1:.1f}" y="{_y(true):.1f}" width="{step - 2:.1f}" '
            f'height="{_y(0) - _y(true):.1f}" fill="{BLUE}" fill-opacity=".28"/>'
            f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{step - 2:.1f}" height="{end - top:.1f}" '
            f'fill="{colour}" fill-opacity=".22"/>'
            f'<line x1="{left + 1:.1f}" x2="{left + step - 1:.1f}" y1="{_y(true):.1f}" y2="{_y(true):.1f}" '
            f'stroke="{BLUE}" stroke-width="2.5"/></g>'
        )
    parts += [_counts(found.counts, step), _labels(axis, frequency)]
    height = TOP + HEIGHT + GAP + COUNTS + BOTTOM
    title = escape(f"Reliability diagram, expected calibration error {found.error:.4f}", quote=True)
    return (
        f'<svg class="lk-svg" viewBox="0 0 {LEFT + WIDTH + 4} {height}" role="img" '
        f'aria-label="{title}" font-size="11">{"".join(parts)}</svg>{_table(found, axis, frequency)}'
    )


def _table(found: Calibration, axis: str, frequency: str) -> str:
    bins = len(found.counts)
    rows = "".join(
        f"<tr><td>{place / bins:.2f}–{(place + 1) / bins:.2f}</td><td>{int(found.counts[place]):,}</td>"
        f"<td>{_number(found.confidence[place])}</td><td>{_number(found.frequency[place])}</td></tr>"
        for place in range(bins)
    )
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("bin", "count", axis, frequency))
    return f"<details><summary>As a table</summary><table><tr>{names}</tr>{rows}</table></details>"


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"


def _y(share: float) -> float:
    return TOP + HEIGHT * (1 - share)


def _frame() -> str:
    return "".join(
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{_y(at):.1f}" y2="{_y(at):.1f}" stroke="currentColor" '
        f'stroke-opacity=".15"/><text x="{LEFT - 5}" y="{_y(at) + 4:.1f}" text-anchor="end">{at:g}</text>'
        for at in (0, 0.25, 0.5, 0.75, 1)
    )


def _diagonal() -> str:
    return (
        f'<line x1="{LEFT}" y1="{_y(0)}" x2="{LEFT + WIDTH}" y2="{_y(1)}" stroke="currentColor" '
        'stroke-opacity=".55" stroke-dasharray="4 4"/>'
    )


def _counts(counts: NDArray[np.int64], step: float) -> str:
    top = TOP + HEIGHT + GAP
    largest = max(int(counts.max(initial=0)), 1)
    parts = []
    for place, count in enumerate(counts.tolist()):
        height = (COUNTS - 12) * count / largest
        left = LEFT + place * step
        parts.append(
            f'<rect x="{left + 1:.1f}" y="{top + COUNTS - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}" fill="currentColor" fill-opacity=".25"/>'
            f'<text x="{left + step / 2:.1f}" y="{top + COUNTS - height - 3:.1f}" text-anchor="middle" '
            f'font-size="8.5">{_short(count)}</text>'
        )
    return "".join(parts)


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"


def _labels(axis: str, frequency: str) -> str:
    base = TOP + HEIGHT + GAP + COUNTS
    ticks = "".join(
        f'<text x="{LEFT + WIDTH * at:.1f}" y="{base + 13}" text-anchor="middle">{at:g}</text>'
        for at in (0, 0.25, 0.5, 0.75, 1)
    )
    middle = TOP + HEIGHT / 2
    return (
        f'{ticks}<text x="{LEFT + WIDTH / 2}" y="{base + 29}" text-anchor="middle">{escape(axis)}</text>'
        f'<text x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">'
        f"{escape(frequency)}</text>"
    )


def precision_recall_figures(curves: Sequence[PrecisionRecall], classes: Sequence[str]) -> str:
    """Return a small curve of each class with its average precision, the lowest first."""
    averages = [curve.average if curve.examples else 2.0 for curve in curves]
    order = np.argsort(averages, kind="stable")
    items = "".join(_curve(curves[number], classes[number]) for number in order.tolist())
    opening = '<ul class="lk-curves" tabindex="0" aria-label="Precision and recall of each class">'
    return f"{opening}{items}</ul>"


def _curve(curve: PrecisionRecall, name: str) -> str:
    name = visible(name)
    shown = f"{curve.average:.3f}" if curve.examples else "no images"
    words = escape(f"{name}: average precision {shown}, {curve.examples:,} images", quote=True)
    path = ""
    if curve.examples:
        # scikit-learn's recall falls; thresholds crowd at its end.
        places = np.searchsorted(-curve.recall, -np.linspace(0, 1, POINTS))
        kept = np.unique(np.append(np.minimum(places, len(curve.recall) - 1), [0, len(curve.recall) - 1]))
        points = " ".join(
            f"{2 + 96 * recall:.1f},{2 + 60 * (1 - precision):.1f}"
            for recall, precision in zip(curve.recall[kept], curve.precision[kept], strict=True)
        )
        path = f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.6"/>'
    frame = '<path d="M2 2V62H98" fill="none" stroke="currentColor" stroke-opacity=".4" stroke-width=".8"/>'
    return (
        f'<li title="{words}"><div><span>{escape(name)}</span><span>{shown}</span></div>'
        f'<svg class="lk-svg" viewBox="0 0 100 64" role="img" aria-label="{words}">{frame}{path}</svg></li>'
    )
