"""Colours and style of all figures, and their display as PNG with alternative text.

Matplotlib is imported when the first figure is made.
"""

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GREY",
    "MARK",
    "OKABE_ITO",
    "SHOWN_PER_INCH",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "new_figure",
    "png",
    "styled",
]

# The palette of Okabe and Ito (2008), which colour-blind readers can tell apart.
TRAIN, VALIDATION, TEST, MARK, GREY = "#0072b2", "#d55e00", "#009e73", "#cc3311", "#6b7280"
OKABE_ITO = (TRAIN, VALIDATION, TEST, "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DOTS_PER_INCH = 180
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
    "grid.color": "#e5e7eb",
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def new_figure(width: float, height: float, alt: str) -> "Figure":
    """Return an empty figure of ``width`` × ``height`` inches. A notebook shows it with the text ``alt``."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def __repr__(self) -> str:
            return f"<{alt}>"

        def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
            shown = {"width": round(self.get_figwidth() * SHOWN_PER_INCH), "alt": alt}
            return png(self), shown

    return ShownFigure(figsize=(width, height), dpi=SHOWN_PER_INCH, layout="constrained", facecolor="white")


def png(figure: "Figure") -> bytes:
    """Return the bytes of ``figure`` as a PNG file."""
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=DOTS_PER_INCH)
    return target.getvalue()


def styled() -> Any:
    """Return a context manager in which figures are drawn in this style."""
    import matplotlib

    return matplotlib.rc_context(STYLE)
