"""What the lessons in ``notebooks/`` call: checks of exercises, claims, and text with measured values."""

from labkit.lessons.begin import Lesson, begin
from labkit.lessons.text import claim, say
from labkit.lessons.verdict import check

__all__ = ["Lesson", "begin", "check", "claim", "say"]
