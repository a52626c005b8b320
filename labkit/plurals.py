"""Counts in sentences."""

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return number and noun in agreement: ``1 checkpoint``, ``2 checkpoints``, ``1,000 checkpoints``.

    Args:
        noun: in the singular, such as ``damaged line``; its plural ends in s.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
