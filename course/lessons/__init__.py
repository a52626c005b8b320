"""What the lessons in ``notebooks/`` call: checks of exercises, claims, and text with measured values."""

from course.lessons.begin import Lesson, begin, claim, say
from course.lessons.verdict import check

__all__ = ["Lesson", "begin", "check", "claim", "say"]
