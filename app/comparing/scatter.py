"""A scatter plot as SVG. Each dot tells its run and values under the pointer, and to screen readers."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.board import ends
from app.comparing.estimate import ticks
from app.state import clean
from labkit.analysis.run_results.results import value_text

__all__ = ["Axis", "Dot", "axis_of", "scatter"]

HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 360, 70, 52, 14, 20
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
        marks = [
            factor * 10.0**power
            for power in range(math.floor(low), math.ceil(high) + 1)
            for factor in ((1, 2, 5) if high - low < 4 else (1,))
        ]
        return [
            (math.log10(mark), f"{mark:,g}")
            for mark in marks
            if low - 0.15 <= math.log10(mark) <= high + 0.15
        ]


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


def scatter(dots: Sequence[Dot], across: Axis, up: Axis, width: int = 680) -> str:
    """Return the plot as SVG of some pixels' width."""
    low_x, high_x = _range([across.place(dot.x) for dot in dots])
    low_y, high_y = _range([up.place(dot.y) for dot in dots])

    def x(place: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * (place - low_x) / (high_x - low_x)

    def y(place: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high_y - place) / (high_y - low_y)

    floor = HEIGHT - BOTTOM
    parts = []
    for at, text in _apart(across.ticks(), x, 34, low_x, high_x):
        parts.append(_line(x(at), x(at), TOP, floor) + _text(x(at), floor + 17, _short(text), "middle"))
    for at, text in _apart(up.ticks(), y, 16, low_y, high_y):
        parts.append(
            _line(LEFT, width - RIGHT, y(at), y(at)) + _text(LEFT - 8, y(at) + 4, _short(text), "end")
        )
    scale = ", logarithmic" if across.logarithmic else ""
    parts.append(_text((LEFT + width - RIGHT) / 2, HEIGHT - 10, across.plain_title + scale, "middle"))
    scale = ", logarithmic" if up.logarithmic else ""
    middle = (TOP + floor) / 2
    turned = f'<g transform="rotate(-90 14 {middle:.0f})">'
    parts.append(turned + _text(14, middle, up.plain_title + scale, "middle") + "</g>")
    for dot in dots:
        words = html.escape(f"{dot.name}: {across.title} {_value(dot.x)}, {up.title} {_value(dot.y)}")
        about = f'tabindex="0" role="img" aria-label="{words}"'
        parts.append(
            f'<circle cx="{x(across.place(dot.x)):.1f}" cy="{y(up.place(dot.y)):.1f}" r="6" '
            f'fill="{dot.color}" fill-opacity=".75" stroke="{dot.color}" {about}>'
            f"<title>{words}</title></circle>"
        )
    label = html.escape(f"{up.title} over {across.title} of {len(dots)} runs", quote=True)
    return (
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="group" aria-label="{label}" font-size="12" '
        f'fill="currentColor" style="width:100%;max-width:{width}px;display:block">{"".join(parts)}</svg>'
    )


def _apart(
    marks: Sequence[tuple[float, str]], pixel: Callable[[float], float], least: float, low: float, high: float
) -> list[tuple[float, str]]:
    """Return the marks of an axis from ``low`` to ``high`` whose texts don't cover those before them."""
    kept: list[tuple[float, str]] = []
    for at, text in marks:
        if low <= at <= high and (not kept or abs(pixel(at) - pixel(kept[-1][0])) >= least):
            kept.append((at, text))
    return kept


def _range(places: Sequence[float]) -> tuple[float, float]:
    low, high = ends(min(places), max(places))
    room = 0.07 * (high - low)
    return low - room, high + room


def _value(value: Any) -> str:
    return f"{value:,.6g}" if _is_number(value) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= 18 else text[:17] + "…"


def _line(x1: float, x2: float, y1: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        'stroke-opacity=".15"/>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity=".85">{html.escape(words)}</text>'
