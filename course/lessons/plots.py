"""A figure of one frame, as several lessons draw it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from labkit.figures.style import GREY, color_of, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^"
# Parts of a sum, from one contribution to the last but one: light to dark. A complete sum is green.
SHADES, COMPLETE = ("#eaf2f8", "#bcd9ec", "#7db5da", "#56b4e9", "#2e8bc0"), "#00755a"


def draw_curves(
    x: Any, values: Mapping[str, ArrayLike], *, level: tuple[str, float] | None = None, **settings: Any
) -> "Figure":
    """Draw curves over common positions, with a legend at the right.

    Args:
        x: [n], numbers or names. Each has a tick.
        values: float [n] by the curve's name.
        level: name and height of a dotted line.
        settings: of the axis, such as ``title``, ``xlabel``, ``ylabel``, ``xscale`` and ``ylim``.
    """
    words = [settings.get(name, "") for name in ("title", "ylabel", "xlabel")]
    with drawing(7.2, 3.3, f"{' '.join(words)}: {', '.join(values)}".replace("\n", " ")) as figure:
        axis = figure.add_subplot()
        for number, (name, shown) in enumerate(values.items()):
            axis.plot(x, shown, MARKERS[number % 4] + "-", color=color_of(number), label=name)
        if level:
            axis.axhline(level[1], color=GREY, linestyle=":", label=level[0])
        axis.set(**settings)
        axis.set_xticks(x, [f"{each:,g}" if not isinstance(each, str) else each for each in x])
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
