"""Import TensorFlow without the messages that it prints at every start, and without what labkit doesn't use.

The messages come from C++ code that runs before TensorFlow reads its log level, so no environment variable
silences them, and a one-line error of labkit is easy to miss among them. Only the messages listed in
``ROUTINE_MESSAGES`` are dropped; everything else is printed.
"""

import gc
import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from labkit.errors import InputError, short
from labkit.startup import interruption

# Keras and TensorFlow import these where they are installed: for galleries, data frames, wrappers for
# scikit-learn, editing weights in a notebook, and sparse matrices in the Keras of TensorFlow 1.
EXTRAS = ("IPython", "matplotlib", "pandas", "scipy", "sklearn")

ROUTINE_MESSAGES = (
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on",
    "Could not find cuda drivers on your machine, GPU will not be used",
    "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",  # on a machine without a GPU
)

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # 0 prints all messages of the C++ code, 2 its errors, 3 those that end it
_OWN_LEVEL = "2"

_left_out: tuple[str, ...] = ()


def quieten_tensorflow(environment: MutableMapping[str, str]) -> None:
    """Leave out errors that TensorFlow's C++ code prints, of which it raises an exception as well.

    For a task of a cluster: when a peer is lost, gRPC prints up to six lines before labkit's one line that
    names the peer. A level that the user has chosen in ``environment`` stays, except 2, which is labkit's own
    and which a launcher passes on. To be called before TensorFlow is imported.
    """
    if environment.get(_LEVEL, _OWN_LEVEL) == _OWN_LEVEL:
        environment[_LEVEL] = "3"


def leave_out_extras() -> None:
    """Make ``import_tensorflow`` leave out ``EXTRAS``: with all of them installed, a third of its time.

    Only for processes that labkit starts itself: in a notebook, all of Keras has to work.
    """
    global _left_out
    _left_out = EXTRAS


def is_own_process() -> bool:
    """Return whether labkit started this process itself, as far as ``leave_out_extras`` was called in it."""
    return bool(_left_out)


@contextmanager
def _without(packages: tuple[str, ...]) -> Iterator[None]:
    """Let imports of ``packages`` fail for a while, as if they weren't installed."""
    names = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # None refuses an import
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Don't look for garbage for a while: an import makes hundreds of thousands of objects, and all stay.

    In processes that labkit starts itself, they aren't looked at later, either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _left_out:
            gc.freeze()
        if was_on:
            gc.enable()


def choose_kernels(environment: MutableMapping[str, str]) -> None:
    """Let TensorFlow use oneDNN on CPUs without AVX-512, too, where steps take twice as long without it.

    TensorFlow itself turns it on only with AVX-512. A choice of the user in ``environment`` stays. To be
    called before TensorFlow is imported.
    """
    environment.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def import_tensorflow() -> None:
    """Import TensorFlow, let it look for devices, and take memory of GPUs only as it is needed.

    Does nothing when TensorFlow is already imported.

    With ``TF_CPP_MIN_LOG_LEVEL=0`` in the environment, every message is printed.

    Raises InputError as ``check_keras_backend`` does.
    """
    check_keras_backend()
    if "tensorflow" in sys.modules:
        _tell_of_slow_kernels()
        return
    choose_kernels(os.environ)
    print_all = os.environ.setdefault(_LEVEL, _OWN_LEVEL) == "0"
    with (
        _without(_left_out),
        _without_collector(),
        nullcontext() if print_all else _without_routine_messages(),
    ):
        import tensorflow as tf

        tf.config.list_physical_devices()
        for gpu in tf.config.list_physical_devices("GPU"):  # or TensorFlow takes all memory, a training's too
            tf.config.experimental.set_memory_growth(gpu, True)


def import_without_gpus() -> None:
    """Import TensorFlow and hide the GPUs: they round differently, and TensorFlow would take their memory."""
    import_tensorflow()
    with suppress(RuntimeError):  # TensorFlow already uses them
        sys.modules["tensorflow"].config.set_visible_devices([], "GPU")


def _tell_of_slow_kernels() -> None:
    """Warn where TensorFlow was imported without ``choose_kernels``, and steps are slower for it."""
    if "TF_ENABLE_ONEDNN_OPTS" in os.environ or platform.machine() != "x86_64":
        return
    from labkit.startup.tf_compat import uses_onednn

    if not uses_onednn():
        warnings.warn(
            "TensorFlow was imported before labkit could turn oneDNN on, without which steps take about "
            "twice as long on this CPU; restart the kernel with TF_ENABLE_ONEDNN_OPTS=1",
            stacklevel=3,
        )


def check_keras_backend() -> None:
    """Raise InputError if Keras can't be loaded, or has another backend than TensorFlow. Imports neither."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config"):
        backend, way_out = keras.config.backend(), "restart the kernel with KERAS_BACKEND=tensorflow"
        named = "in this process"
    else:
        settings, file = _keras_settings()
        given = os.environ.get("KERAS_BACKEND")
        backend, named = (given, "KERAS_BACKEND") if given else (settings.get("backend", "tensorflow"), file)
        way_out = "set KERAS_BACKEND=tensorflow, for this command alone or for good"
    if backend != "tensorflow":
        raise InputError(
            f"Keras's backend is {str(backend)[:60]!r} ({named}), and labkit needs tensorflow; {way_out}"
        )


# What keras.json may hold; with anything else, the import of Keras fails.
_KERAS_TAKES = {
    "floatx": "float32, float16, float64",
    "image_data_format": "channels_last, channels_first",
    "epsilon": "a number with a decimal point",
}


def _keras_settings() -> tuple[dict[str, Any], str]:
    """Return the settings that Keras will load, and their file. Raises InputError for what it refuses."""
    home = os.path.expanduser("~")
    folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = Path(os.path.expanduser(os.environ.get("KERAS_HOME", folder)), "keras.json")
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError):  # of a damaged file Keras takes nothing
        return {}, str(path)
    way_out = "correct that, or remove the file, which Keras then writes anew"
    if not isinstance(settings, dict):
        raise InputError(f"{path} isn't a JSON object, which Keras needs; {way_out}")
    for name in _KERAS_TAKES.keys() & settings.keys():
        value, allowed = settings[name], _KERAS_TAKES[name]
        if not (isinstance(value, float) if name == "epsilon" else value in allowed.split(", ")):
            raise InputError(f"{path}: {name} is {short(value)}; allowed: {allowed}; {way_out}")
    return settings, str(path)


@contextmanager
def _without_routine_messages() -> Iterator[None]:
    """Hold back what is written to stderr, and print all but ``ROUTINE_MESSAGES`` in the end."""
    sys.stderr.flush()
    real = interruption.stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            interruption.stderr = 2
            os.close(real)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if not any(message in line for message in ROUTINE_MESSAGES):
                    print(line, file=sys.stderr)
