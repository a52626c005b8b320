"""A callback that leaves the processor to other processes between steps; a file for ``--callbacks``."""

import time

import labkit


class Unhurried(labkit.Callback):
    """Waits behind each step."""

    def after_step(self, training, row):
        time.sleep(0.1)


callbacks = [Unhurried()]
