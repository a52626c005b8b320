"""Colours and style of all figures, and their display as PNG with alternative text.

Matplotlib is imported when the first figure is made.
"""

import functools
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito (2008), which colour-blind readers can tell apart.
TRAIN, VALIDATION, TEST, MARK, GREY = "#0072b2", "#d55e00", "#009e73", "#cc3311", "#6b7280"
OKABE_ITO = (TRAIN, VALIDATION, TEST, "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DOTS_PER_INCH = 180
LONGEST_NAME = 28  # characters of a class's name in a figure
# Fonts with what DejaVu lacks (Chinese, Japanese, Korean, Indian scripts), used where they are installed.
FURTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "IPAGothic",
    "NanumGothic",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Sans Devanagari",
    "Unifont",
)
SHOWN_PER_INCH = 90  # displayed pixels; half of the dots, so that figures are sharp on high-density screens
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#374151",
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def drawing(width: float, height: float, alt: str) -> "Iterator[Figure]":
    """Give an empty figure of ``width`` × ``height`` inches to draw into, in the style of all figures.

    A notebook shows it with the text ``alt``.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    class ShownFigure(Figure):
        def __repr__(self) -> str:
            return f"<{alt}>"

        def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
            shown = {"width": round(self.get_figwidth() * SHOWN_PER_INCH), "alt": alt}
            return png(self), shown

    style = {"axes.prop_cycle": cycler(color=OKABE_ITO), "font.family": list(_families())}
    with matplotlib.rc_context(STYLE | style):
        yield ShownFigure(
            figsize=(width, height), dpi=SHOWN_PER_INCH, layout="constrained", facecolor="white"
        )


def color_of(number: int) -> str:
    """Return the colour of the curve with this number; after the palette's last comes its first again."""
    return OKABE_ITO[number % len(OKABE_ITO)]


def png(figure: "Figure") -> bytes:
    """Return the bytes of ``figure`` as a PNG file."""
    target = io.BytesIO()
    with warnings.catch_warnings():
        # A character that no font has is drawn as a box, which says enough.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from")
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH)
    return target.getvalue()


def shown_name(name: str, longest: int = LONGEST_NAME) -> str:
    """Return the name of a class as a figure shows it: on one line, not too long, and no formula.

    Matplotlib reads what stands between dollar signs as a formula, and fails for a wrong one.
    """
    text = "".join(character if character.isprintable() else " " for character in name)
    text = " ".join(text.split())
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    return text.replace("$", r"\$")


@functools.cache
def _families() -> tuple[str, ...]:
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in FURTHER_FONTS if name in installed))
