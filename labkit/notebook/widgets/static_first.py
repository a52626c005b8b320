"""What all widgets share: a static figure comes first, and the widget below it.

Widgets of ipywidgets don't work in a saved notebook. Sliders over pre-drawn frames do, also in an HTML page
that is opened from a file.
"""

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.notebook import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["is_interactive", "live", "show", "slider"]


def is_interactive() -> bool:
    """Return whether a user can operate widgets: true in JupyterLab, false in papermill or nbconvert."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin"))


def show(figure: Any, make_widget: Callable[[], Any]) -> None:
    """Display ``figure`` and, if interactive, the widget that ``make_widget()`` returns."""
    from IPython.display import display

    display(figure)
    if is_interactive():
        display(make_widget())


def live(draw: Callable[[], Any], *controls: Any) -> Any:
    """Return ``controls`` above the figure of ``draw()``, which is redrawn when a control changes.

    The figure is hidden until the first change, because the same static figure is shown right above.
    """
    import ipywidgets

    image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%", display="none"))

    def redraw(change: Any = None) -> None:
        figure = draw()
        image.width = str(round(figure.get_figwidth() * plots.SHOWN_PER_INCH))
        image.value = plots.png(figure)
        image.layout.display = "none" if change is None else None

    redraw()
    for control in controls:
        control.observe(redraw, names="value")
    row = ipywidgets.HBox(controls, layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([row, image])


def slider(draw: "Callable[[Any], Figure]", values: Sequence[Any], label: str, *, start: int = 0) -> None:
    """Display ``draw(values[start])`` and below it a slider over the figures of all values, drawn now.

    The slider needs neither a kernel nor a network: it also works in the exported page. Its figure is
    hidden until it is moved.

    Args:
        draw: makes the figure of one value; its alternative text should contain the value.
        values: at most about 15, since each adds a picture to the notebook.
        label: what the slider changes, such as ``"step"``; a value is shown as ``step 3``.
        start: the number of the value that is shown first.
    """
    from IPython.display import HTML, display

    figures = [draw(value) for value in values]
    display(figures[start])
    display(HTML(_slider_html(figures, [f"{label} {value}" for value in values], label, start)))


# Shows the frame that the slider selects, and its caption. `hidden` keeps the others out of the page.
_MOVED = (
    "const frames = this.closest('.labkit-frames');"
    "frames.querySelectorAll('figure').forEach((frame, number) => {"
    "  frame.hidden = number !== +this.value; });"
    "this.nextElementSibling.textContent = this.dataset.captions.split('|')[this.value];"
)


def _slider_html(figures: "Sequence[Figure]", captions: Sequence[str], label: str, start: int) -> str:
    shown = []
    for figure, caption in zip(figures, captions, strict=True):
        picture = base64.b64encode(plots.png(figure)).decode()
        width = round(figure.get_figwidth() * plots.SHOWN_PER_INCH)
        shown.append(
            f'<figure hidden style="margin:0"><img alt="{escape(repr(figure)[1:-1])}, {escape(caption)}" '
            f'width="{width}" style="max-width:100%" src="data:image/png;base64,{picture}"></figure>'
        )
    captions = [caption.replace("|", "/") for caption in captions]
    return (
        '<div class="labkit-frames"><label>'
        f'<input type="range" min="0" max="{len(figures) - 1}" value="{start}" step="1" '
        f'aria-label="{escape(label)}" style="width:20em;vertical-align:middle" '
        f'data-captions="{escape("|".join(captions))}" oninput="{escape(_MOVED)}"> '
        f"<span>{escape(captions[start])}</span></label>{''.join(shown)}</div>"
    )
