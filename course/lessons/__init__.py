"""What the lessons in ``notebooks/`` call: checks, claims, predictions, and text with measured values."""

from course.lessons.begin import Lesson, begin, claim, say
from course.lessons.predict import outcome, predict, record
from course.lessons.verdict import check

__all__ = ["Lesson", "begin", "check", "claim", "outcome", "predict", "record", "say"]
