"""Fixtures that every test may use."""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from labkit.data.manifest import Manifest, load_manifest
from labkit.data.prepare import prepare
from labkit.startup.quiet_import import choose_kernels

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
choose_kernels(os.environ)  # as labkit does before it imports TensorFlow, which many tests do themselves

# Containers often set these. Without them, processes that tests start are as most users have them.
for variable in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(variable, None)

# Hypothesis tries the same examples on every machine; --hypothesis-profile=default tries others each time.
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.load_profile("repeatable")

# Files with the longest slow tests: they begin before other slow ones, so that none is waited for at the end.
LONGEST = (
    "test_cluster_curve.py",
    "test_browser_pages.py",
    "test_replicas.py",
    "test_browser_charts.py",
    "test_resume.py",
    "test_recipes.py",
    "test_browser.py",
    "test_training.py",
    "test_benchmark_scripts.py",
    "test_slurm_host.py",
    "test_follow.py",
    "test_standard.py",
    "test_train_notebook.py",
    "test_brought.py",
    "test_keras_optimizers.py",
    "test_api.py",
    "test_accumulate.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files with slow tests last, slow tests last in their file: what breaks quickly is seen first.

    Tests about a peer of the benchmarks are left out where it isn't installed.
    """
    left_out = [
        item for item in items for mark in item.iter_markers("peer") if find_spec(mark.args[0]) is None
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, int, bool]:
        turn = LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)
        return item.path in slow, turn, item.get_closest_marker("slow") is not None

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Prepare this process for trainings and pages among its tests."""
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # tests that need one start a process
    # Streamlit collects garbage at each run of a page: 0.3 s of 0.4 among all that TensorFlow imports.
    gc.collect()
    gc.freeze()


# What may be absent where the variable CI is set; .ci/run installs whatever else a test can lack.
MAY_BE_ABSENT = ("LABKIT_CIFAR10", "IPv6")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail what is skipped for want of a package, so that a broken installation is seen."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(word in reason for word in MAY_BE_ABSENT):
            report.outcome = "failed"
            report.longrepr = f"CI must not skip this test: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """After a test, let operations draw at random again, as in a new process.

    A command that runs in this process leaves TensorFlow's determinism on: its own process would end.
    """
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()


@pytest.fixture(scope="session", autouse=True)
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep data and runs of the tests, and of the processes they start, out of the user's home."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is made once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each process a folder in a common one.
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def shapes_dir(common_folder: Path) -> Path:
    """The data directory of the embedded data set, drawn once for all test processes. Not to be changed."""
    prepare("shapes", common_folder / "shapes")  # of processes at the same time, one does the work
    return common_folder / "shapes"


@pytest.fixture(scope="session")
def smoke(common_folder: Path, shapes_dir: Path) -> Path:
    """The run of ``smoke``, made once for all test processes. Not to be changed: see ``smoke_copy``.

    It has 20 steps, checkpoints at 10 and 20, a validation of both, a test and its predictions.
    """
    run = common_folder / "smoke"
    with open(common_folder / "smoke.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not (run / "predictions" / "test.json").exists():
            flags = ["--preset", "smoke", "--data-dir", shapes_dir, "--job-dir", run, "--num-gpus", "0"]
            flags += ["--checkpoint-every-steps", "10", "--validate-every-steps", "10"]
            command = [sys.executable, "-m", "labkit", "train", *map(str, flags)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
            assert ended.returncode == 0, ended.stderr[-3000:]
    return run


@pytest.fixture
def smoke_copy(smoke: Path, tmp_path: Path) -> Path:
    """A run of 20 steps for one test, a copy of ``smoke``."""
    return shutil.copytree(smoke, tmp_path / "smoke")


@pytest.fixture(scope="session")
def shapes(session_home: Path, shapes_dir: Path) -> Manifest:
    """The embedded data set, where a training looks for it that isn't told."""
    shutil.copytree(shapes_dir, session_home / "data", dirs_exist_ok=True)
    return load_manifest(session_home / "data", "shapes")


@pytest.fixture(scope="session")
def cifar10_folder() -> Path:
    """The folder with CIFAR-10 in its published layouts, archives and extracted folders."""
    named = os.environ.get("LABKIT_CIFAR10")
    if not named:
        pytest.skip("LABKIT_CIFAR10 is not set: it names a folder with cifar-10-batches-py and its siblings")
    folder = Path(named)
    if not (folder / "cifar-10-batches-py").is_dir():
        pytest.fail(f"LABKIT_CIFAR10={named} holds no cifar-10-batches-py")
    return folder
