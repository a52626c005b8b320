"""The symptoms of the five patients, trained now."""

from typing import Any

import numpy as np

from course.lessons.debug.patients import Patient, leaky_split, train_on
from course.lessons.debug.probes import dependency

__all__ = ["mixing", "symptoms"]

STEPS, LONG = 60, 400


def mixing() -> Any:
    """Return the ``dependency`` of patient 4 on a batch of 8 images, float64 [8, 8]."""
    from course.lessons.debug.broken import broken_network, mixing_weights

    weights = mixing_weights()
    images, _ = Patient().batch(1)
    return dependency(lambda shown: broken_network(shown, weights), images[:8])


def symptoms() -> dict[str, dict[str, tuple[Any, Any]]]:
    """Train the five patients, and a sound network beside the first four.

    Returns, by the title of a panel, (steps, values) by the name of a curve, for ``draw_patients``.
    """
    from course.lessons.debug.broken import broken_network, broken_update, train_network, train_scheduled

    sound = Patient().train(LONG)
    patients = {
        "patient 1": Patient("labels").train(STEPS),
        "patient 2": Patient("softmax").train(LONG),
        "patient 3": train_scheduled(broken_update, STEPS),
        "patient 4": train_network(broken_network, STEPS),
    }
    panels: dict[str, dict[str, tuple[Any, Any]]] = {}
    for name, losses in patients.items():
        steps = np.arange(1, len(losses) + 1)
        panels[name] = {"sound": (steps, sound[: len(losses)]), name: (steps, losses)}
    steps, accuracy = train_on(leaky_split(200, 0.9, seed=1), STEPS, every=5)
    shown = {"train": "train", "validation": "validation", "new": "images from users"}
    panels["patient 5: accuracy"] = {shown[name]: (steps, values) for name, values in accuracy.items()}
    return panels
