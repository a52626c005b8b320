"""Plots as SVG: the difference of A and B with its interval, and a scatter plot of all runs.

Each dot tells its run and values under the pointer, and to screen readers.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.board import PALETTE, ends
from app.charts.heat import powers
from app.state import clean
from labkit.analysis.results import MEASURES, Group, told_apart, value_text
from labkit.analysis.versus import Versus, amount

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
    """Return the picture as SVG of some pixels' width; empty where their results can't be compared."""
    values = [first.values(measure), second.values(measure)]
    if not all(values) or told_apart((first, second), measure):
        return ""
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    parts, bottom = _dots([[scale * value for value in of_one] for of_one in values], measure, width)
    if answer.difference is not None:
        found = answer.difference
        more, bottom = _interval(
            [scale * value for value in (found.low, found.mean, found.high)], measure, bottom, width
        )
        parts += more
    return _svg(parts, width, bottom, "img", answer.headline)


class _Ruler:
    """An axis of numbers from one pixel to another, with room on both sides of the values."""

    def __init__(self, values: Sequence[float], first: int, last: int) -> None:
        self.first, self.last = first, last
        low, high = ends(min(values), max(values))
        room = 0.07 * (high - low)
        self.low, self.high = low - room, high + room

    def at(self, value: float) -> float:
        return self.first + (self.last - self.first) * (value - self.low) / (self.high - self.low)

    def apart(self, marks: Sequence[tuple[float, str]], least: float) -> list[tuple[float, str]]:
        """Return pixels and texts of the marks on the axis whose texts don't cover those before them."""
        kept: list[tuple[float, str]] = []
        for value, text in marks:
            at = self.at(value)
            if self.low <= value <= self.high and (not kept or abs(at - kept[-1][0]) >= least):
                kept.append((at, text))
        return kept

    def draw(self, y: float, unit: str) -> str:
        marks = ticks(self.low, self.high, max(3, (self.last + RIGHT) // 120))
        texts = [
            _line(self.at(mark), self.at(mark), y, y + 4, opacity=0.5)
            + _text(self.at(mark), y + 16, f"{mark:.6g}".replace("-", "−") + unit, "middle")
            for mark in marks
        ]
        return _line(self.first, self.last, y, y, opacity=0.3) + "".join(texts)


def _dots(values: list[list[float]], measure: str, width: int) -> tuple[list[str], int]:
    """Draw a dot for each run and a bar at each mean. Returns the parts and the height so far."""
    axis = _Ruler([value for of_one in values for value in of_one], LEFT, width - RIGHT)
    parts = []
    for row, (name, of_one) in enumerate(zip("AB", values, strict=True)):
        y, mean = 16 + 24 * row, axis.at(sum(of_one) / len(of_one))
        parts.append(f'<text x="4" y="{y + 4}" font-weight="600">{name}</text>')
        parts += [
            f'<circle cx="{axis.at(value):.1f}" cy="{y}" r="5" fill="{COLORS[row]}" fill-opacity=".65">'
            f"<title>{value:,.6g}</title></circle>"
            for value in of_one
        ]
        if len(of_one) > 1:
            parts.append(_line(mean, mean, y - 9, y + 9, COLORS[row], 1, 'stroke-width="3"'))
    parts.append(axis.draw(56, " %" if MEASURES[measure].unit == "percent" else ""))
    return parts, 78


def _interval(found: list[float], measure: str, top: int, width: int) -> tuple[list[str], int]:
    low, mean, high = found
    axis = _Ruler([low, high, 0.0], LEFT, width - RIGHT)
    y = top + 16
    left, right, zero = axis.at(low), axis.at(high), axis.at(0.0)
    edges = ((left, right, y, y), (left, left, y - 6, y + 6), (right, right, y - 6, y + 6))
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    told = f"{amount(measure, low / scale)} to {amount(measure, high / scale)}"
    return [
        f'<text x="0" y="{y + 4}" font-weight="600">B−A</text>',
        _line(zero, zero, y - 12, y + 18, opacity=0.8, more='stroke-dasharray="3 3"'),
        f"<g><title>{html.escape(told)}</title>",
        *(_line(*edge, COLORS[1], 1, 'stroke-width="3"') for edge in edges),
        "</g>",
        f'<circle cx="{axis.at(mean):.1f}" cy="{y}" r="6" fill="{COLORS[1]}"/>',
        axis.draw(y + 18, " pt" if scale == 100 else ""),
    ], y + 40


HEIGHT, PLOT_LEFT, BOTTOM, TOP = 360, 70, 52, 14
LOGARITHMIC = 10  # from this ratio of the largest to the smallest value on
FEW = 5  # values that each have a mark


@dataclass(frozen=True)
class Axis:
    """One axis.

    ``values``: of each run; None: unknown. ``names``: of an axis that isn't of numbers. ``few``: whether up
    to five values each have a mark, as those of a setting.
    """

    title: str
    values: Sequence[Any]
    unit: str = ""
    logarithmic: bool = False
    names: tuple[str, ...] = ()
    few: bool = False

    @property
    def plain_title(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def place(self, value: Any) -> float:
        """Return where a value lies: itself, its logarithm, or the number of its name."""
        if self.names:
            return float(self.names.index(value))
        return math.log10(value) if self.logarithmic else float(value)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and texts of marks."""
        if self.names:
            return [(float(place), name) for place, name in enumerate(self.names)]
        places = [self.place(value) for value in self.values if value is not None]
        low, high = min(places), max(places)
        if self.few and len(set(places)) <= FEW:
            return sorted(
                {(self.place(value), f"{value:,.6g}") for value in self.values if value is not None}
            )
        if not self.logarithmic:
            return [(at, f"{at:,.6g}".replace("-", "−")) for at in ticks(low, high)]
        marks = powers(low - 0.15, high + 0.15, 1, 4.0)
        return [(math.log10(mark), f"{mark:,g}") for mark in marks]


@dataclass(frozen=True)
class Dot:
    """One run: its name, its value on both axes, its colour."""

    name: str
    x: Any
    y: Any
    color: str


def axis_of(title: str, values: Sequence[Any], unit: str = "", *, few: bool = False) -> Axis:
    """Return the axis of some values: of numbers if all known ones are finite numbers, else of names."""
    known = [value for value in values if value is not None]
    if known and all(_is_number(value) for value in known):
        spread = min(known) > 0 and max(known) / min(known) >= LOGARITHMIC
        return Axis(title, list(values), unit, spread, few=few)
    texts = [clean(value_text(value)) for value in values]
    return Axis(title, texts, unit, names=tuple(dict.fromkeys(texts)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def scatter(dots: Sequence[Dot], across: Axis, up: Axis, width: int = 680, *, what: str = "runs") -> str:
    """Return the plot as SVG of some pixels' width. ``what``: the dots are."""
    floor, parts = HEIGHT - BOTTOM, []
    x = _Ruler([across.place(dot.x) for dot in dots], PLOT_LEFT, width - RIGHT)
    y = _Ruler([up.place(dot.y) for dot in dots], floor, TOP)
    for at, text in x.apart(across.ticks(), 34):
        parts.append(_line(at, at, TOP, floor) + _text(at, floor + 17, _short(text), "middle"))
    for at, text in y.apart(up.ticks(), 16):
        parts.append(_line(x.first, x.last, at, at) + _text(x.first - 8, at + 4, _short(text), "end"))
    below, beside = (axis.plain_title + ", logarithmic" * axis.logarithmic for axis in (across, up))
    parts.append(_text((x.first + x.last) / 2, HEIGHT - 10, below, "middle"))
    middle = (TOP + floor) / 2
    turned = f'<g transform="rotate(-90 14 {middle:.0f})">'
    parts.append(turned + _text(14, middle, beside, "middle") + "</g>")
    for dot in dots:
        words = html.escape(f"{dot.name}: {across.title} {_value(dot.x)}, {up.title} {_value(dot.y)}")
        about = f'tabindex="0" role="img" aria-label="{words}"'
        parts.append(
            f'<circle cx="{x.at(across.place(dot.x)):.1f}" cy="{y.at(up.place(dot.y)):.1f}" r="6" '
            f'fill="{dot.color}" fill-opacity=".75" stroke="{dot.color}" {about}>'
            f"<title>{words}</title></circle>"
        )
    return _svg(parts, width, HEIGHT, "group", f"{up.title} over {across.title} of {len(dots)} {what}")


def _value(value: Any) -> str:
    return f"{value:,.6g}" if _is_number(value) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= 18 else text[:17] + "…"


def _svg(parts: Sequence[str], width: int, height: int, role: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="{role}" aria-label="{html.escape(label, quote=True)}" '
        f'font-size="12" fill="currentColor" style="width:100%;max-width:{width}px;display:block">'
        f"{''.join(parts)}</svg>"
    )


def _line(
    x1: float,
    x2: float,
    y1: float,
    y2: float,
    color: str = "currentColor",
    opacity: float = 0.15,
    more: str = "",
) -> str:
    return (
        f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-opacity="{opacity:g}" {more}/>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity=".85">{html.escape(words)}</text>'
