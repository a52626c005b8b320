"""Text of a lesson that contains measured values, and claims that are checked."""

from typing import Any

__all__ = ["claim", "say"]


def say(text: str) -> None:
    """Show ``text`` as Markdown. Write it as an f-string, so that its numbers are those of this machine."""
    from IPython.display import Markdown, display

    display(Markdown(text))


def claim(text: str, holds: Any) -> None:
    """Show ``text`` with a check mark if it holds.

    Args:
        text: what is claimed, with the measured values, such as ``f"prefetching is {ratio:.1f} × as fast"``.
        holds: whether the measurement shows it.

    Raises AssertionError with the text otherwise, so that a lesson can't say what isn't so.
    """
    if not bool(holds):
        raise AssertionError(f"not so on this machine: {text}")
    say(f"✓ {text}")
