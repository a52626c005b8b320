"""Fixtures that every test may use."""

import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about PyTorch where there is none, and run the slow tests last."""
    if find_spec("torch") is None:
        left_out = [item for item in items if item.get_closest_marker("torch")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # What breaks quickly is seen first.
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


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


@pytest.fixture(scope="session", autouse=True)
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep data and runs of the tests, and of the processes they start, out of the user's home."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        yield folder


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
