"""The picture of a difference: the results of A and B, and the interval of B − A below them, as SVG."""

import html
import math
from collections.abc import Sequence

from app.charts.board import PALETTE, ends
from labkit.analysis.run_results.groups import Group
from labkit.analysis.run_results.results import MEASURES
from labkit.analysis.run_results.versus import Versus, amount

__all__ = ["estimate", "ticks"]

LEFT, RIGHT = 34, 20
COLORS = PALETTE[:2]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``, some ``about`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def estimate(first: Group, second: Group, measure: str, answer: Versus, width: int = 640) -> str:
    """Return the picture as SVG of some pixels' width; empty where one of both has no result."""
    values = [first.values(measure), second.values(measure)]
    if not all(values):
        return ""
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    parts, bottom = _dots([[scale * value for value in of_one] for of_one in values], measure, width)
    if answer.difference is not None:
        found = answer.difference
        more, bottom = _interval(
            [scale * value for value in (found.low, found.mean, found.high)], measure, bottom, width
        )
        parts += more
    alt = html.escape(answer.headline, quote=True)
    return (
        f'<svg viewBox="0 0 {width} {bottom}" role="img" aria-label="{alt}" font-size="12" '
        f'fill="currentColor" style="width:100%;max-width:{width}px;display:block">{"".join(parts)}</svg>'
    )


class _Axis:
    """A horizontal axis over some values with room on both sides."""

    def __init__(self, values: Sequence[float], width: int, room: float = 0.08) -> None:
        self.width = width
        low, high = ends(min(values), max(values))
        self.low, self.high = low - room * (high - low), high + room * (high - low)

    def x(self, value: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * (value - self.low) / (self.high - self.low)

    def draw(self, y: float, unit: str) -> str:
        marks = ticks(self.low, self.high, max(3, self.width // 120))
        texts = [
            f'<line x1="{self.x(t):.1f}" x2="{self.x(t):.1f}" y1="{y}" y2="{y + 4}" stroke="currentColor" '
            f'stroke-opacity=".5"/><text x="{self.x(t):.1f}" y="{y + 16}" text-anchor="middle" '
            f'opacity=".8">{f"{t:.6g}".replace("-", "−")}{unit}</text>'
            for t in marks
        ]
        line = f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" '
        line += 'stroke-opacity=".3"/>'
        return line + "".join(texts)


def _dots(values: list[list[float]], measure: str, width: int) -> tuple[list[str], int]:
    """Draw a dot for each run and a bar at each mean. Returns the parts and the height so far."""
    axis = _Axis([value for of_one in values for value in of_one], width)
    parts = []
    for row, (name, of_one) in enumerate(zip("AB", values, strict=True)):
        y, mean = 16 + 24 * row, sum(of_one) / len(of_one)
        parts.append(f'<text x="4" y="{y + 4}" font-weight="600">{name}</text>')
        parts += [
            f'<circle cx="{axis.x(value):.1f}" cy="{y}" r="5" fill="{COLORS[row]}" fill-opacity=".65">'
            f"<title>{value:,.6g}</title></circle>"
            for value in of_one
        ]
        if len(of_one) > 1:
            parts.append(
                f'<line x1="{axis.x(mean):.1f}" x2="{axis.x(mean):.1f}" y1="{y - 9}" y2="{y + 9}" '
                f'stroke="{COLORS[row]}" stroke-width="3"/>'
            )
    parts.append(axis.draw(56, " %" if MEASURES[measure].unit == "percent" else ""))
    return parts, 78


def _interval(found: list[float], measure: str, top: int, width: int) -> tuple[list[str], int]:
    low, mean, high = found
    axis = _Axis([low, high, 0.0], width)
    y = top + 16
    zero = axis.x(0.0)
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    told = f"{amount(measure, low / scale)} to {amount(measure, high / scale)}"
    return [
        f'<text x="0" y="{y + 4}" font-weight="600">B−A</text>',
        f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="{y - 12}" y2="{y + 18}" stroke="currentColor" '
        'stroke-dasharray="3 3" stroke-opacity=".8"/>',
        f'<g stroke="{COLORS[1]}" stroke-width="3"><title>{html.escape(told)}</title>'
        f'<line x1="{axis.x(low):.1f}" x2="{axis.x(high):.1f}" y1="{y}" y2="{y}"/>'
        f'<line x1="{axis.x(low):.1f}" x2="{axis.x(low):.1f}" y1="{y - 6}" y2="{y + 6}"/>'
        f'<line x1="{axis.x(high):.1f}" x2="{axis.x(high):.1f}" y1="{y - 6}" y2="{y + 6}"/></g>',
        f'<circle cx="{axis.x(mean):.1f}" cy="{y}" r="6" fill="{COLORS[1]}"/>',
        axis.draw(y + 18, " pt" if scale == 100 else ""),
    ], y + 40
