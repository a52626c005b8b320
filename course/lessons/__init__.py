"""What the lessons in ``notebooks/`` call: checks, claims, predictions, and text with measured values."""

from course.lessons.begin import Lesson, begin, claim, few_images, say
from course.lessons.predict import compared, outcome, predict, record
from course.lessons.verdict import check

__all__ = [
    "Lesson",
    "begin",
    "check",
    "claim",
    "compared",
    "few_images",
    "outcome",
    "predict",
    "record",
    "say",
]
