"""TensorFlow's start without its notices of normal things.

They come from C++ before TensorFlow reads its own log level, so no variable silences them; a one-line
error of ours would drown in them. Anything that isn't on the list below is passed on.
"""

import os
import sys
import tempfile

__all__ = ["import_tensorflow"]

NORMAL = (
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on",
    "Could not find cuda drivers on your machine, GPU will not be used",
    "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",  # how a machine without a GPU answers
)


def import_tensorflow() -> None:
    """Import TensorFlow and let it look for devices; later imports find it loaded.

    ``TF_CPP_MIN_LOG_LEVEL=0`` asks to see everything: then nothing is held back.
    """
    if "tensorflow" in sys.modules or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        return
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if not any(notice in line for notice in NORMAL):
                    print(line, file=sys.stderr)
