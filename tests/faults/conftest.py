"""Data for the clusters of this folder, and the table of what they showed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.data.prepare import prepare
from tests.faults.launched import Cluster
from tests.faults.outcome import IN_STEP, Case, assert_whole, write_table


@pytest.fixture(scope="session")
def data_dir(session_home: Path) -> Path:
    """The embedded data set without validation examples: most cases are about training."""
    prepare("shapes", session_home / "whole", validation_size=0)
    return session_home / "whole"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Cluster:
    """A synchronous run without hosts and without a fault."""
    cluster = Cluster(tmp_path_factory.mktemp("undisturbed") / "run", data_dir=data_dir, **IN_STEP)
    try:
        assert cluster.end() == 0, cluster.text()
    finally:
        cluster.destroy()
    assert_whole(cluster)
    return cluster


@pytest.fixture
def launch(tmp_path: Path, data_dir: Path) -> Iterator[Callable[..., Cluster]]:
    """Start clusters on one run directory; whatever a failed test leaves of them is killed."""
    made: list[Cluster] = []

    def start(job_dir: Path = tmp_path / "run", **options: object) -> Cluster:
        made.append(Cluster(job_dir, **({"data_dir": data_dir} | options)))
        return made[-1]

    yield start
    for cluster in made:
        cluster.destroy()


@pytest.fixture(scope="session")
def table() -> Iterator[list[Case]]:
    """Takes what each case measured; LABKIT_FAULTS_TABLE names the file for it, in Markdown."""
    cases: list[Case] = []
    yield cases
    path = os.environ.get("LABKIT_FAULTS_TABLE")
    if path and cases:
        write_table(Path(path), cases)
