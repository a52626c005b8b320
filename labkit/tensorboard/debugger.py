"""TensorBoard's Debugger V2: a dump of what every operation of a training returned."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.run_directory import RunDirectory
from labkit.tensorboard.log_folder import DEBUGGER_FOLDER

__all__ = ["debugger_dump"]

# Of each tensor: its shape, and how many of its values are NaN, infinite, negative, zero and positive.
MODE = "FULL_HEALTH"
# The last ones are written when the training ends: about 80 steps of ResNet-20, 26 MB. TensorFlow's own 1,000
# are less than a step.
TENSORS = 100_000


@contextmanager
def debugger_dump(run: RunDirectory) -> Iterator[None]:
    """Dump the operations that run within the block into the run's events, in place of an earlier dump.

    The dump holds what was traced within the block, and the last ``TENSORS`` tensors.
    """
    import tensorflow as tf

    folder = run.events_path / DEBUGGER_FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # TensorBoard refuses a folder with the dumps of two processes
    tf.debugging.experimental.enable_dump_debug_info(str(folder), MODE, circular_buffer_size=TENSORS)
    try:
        yield
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
