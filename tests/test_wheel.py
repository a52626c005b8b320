"""What a wheel installs works away from the checkout, from an empty folder and with no variable set."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.notebook.files import conclusion_of, read_notebook
from labkit.run_directory import RunDirectory
from tests.app.browser import IDLE, browser_visit, process, wait_for

ROOT = Path(__file__).resolve().parents[1]
TIME_LIMIT = 280
SOURCES = ("labkit", "course", "app", "notebooks", "pyproject.toml", "README.md", "LICENSE")
FEW = {"dataset": "shapes", "train_steps": 3, "train_batch_size": 32, "validate_every_steps": 0}
DEMO = "import sys; from labkit.commands.notebook import run_demo; sys.exit(run_demo(parameters={}))"

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.alone]


@dataclass(frozen=True)
class Installed:
    """A virtual environment, and a user who has never seen the checkout."""

    prefix: Path
    home: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.prefix / "bin"), os.defpath])
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}

    def run(self, *command: str, code: int = 0, timeout: float = TIME_LIMIT) -> str:
        """Run a command of the environment in the user's folder. Returns what it printed."""
        ended = subprocess.run(
            [str(self.prefix / "bin" / command[0]), *command[1:]],
            cwd=self.folder, env=self.environment, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout
        return ended.stdout

    @contextmanager
    def dashboard(self) -> Iterator[str]:
        """Start ``labkit dashboard``. Yields its address."""
        log = self.home / "dashboard.log"
        command = [str(self.prefix / "bin" / "labkit"), "dashboard", "--no-browser"]
        with (
            log.open("wb") as output,
            process(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output) as server,
        ):
            wait_for(lambda: "URL:" in log.read_text(), server, log)
            yield log.read_text().split()[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy: setuptools writes into the folder that it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / "source" / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / "source" / name)
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, *command, "--wheel-dir", str(folder), str(folder / "source")],
        check=True,
        timeout=TIME_LIMIT,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(
    scope="module",
    params=["borrowed", pytest.param("extras", marks=pytest.mark.timeout(1800))],
)
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, request) -> Installed:
    """The wheel in an environment of its own, without the labkit of this one.

    Its packages are borrowed from this environment, or they are what pip installs for the extras that README
    names, which takes minutes and 3 GB.
    """
    folder = tmp_path_factory.mktemp("installed")
    prefix = folder / "prefix"
    venv.create(prefix, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(prefix / "bin" / "python"), "install", "--quiet"]
    if request.param == "extras":
        subprocess.run([*pip, f"{wheel}[notebook,app]"], check=True, timeout=1500)
    else:
        subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=TIME_LIMIT)
        (site,) = prefix.glob("lib/python*/site-packages")
        # In a folder that a .pth file names, no .pth file is read, such as that of an editable labkit.
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    user = Installed(prefix, folder / "home", folder / "work")
    user.home.mkdir()
    user.folder.mkdir()
    return user


@pytest.fixture(scope="module")
def demo(installed: Installed) -> tuple[str, RunDirectory]:
    """What a short ``labkit demo`` says, and its run."""
    said = installed.run("python", "-c", DEMO.format(FEW))
    (run,) = (installed.home / ".labkit" / "runs").glob("resnet*")
    return said, RunDirectory(run)


def test_a_wheel_has_the_dashboard_and_the_notebooks_and_takes_two_names(wheel):
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    about = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    assert {name.parts[0] for name in names} == {"labkit", "course", about}
    assert not any(name.is_relative_to("course/site") for name in names)
    app = [path for path in (ROOT / "app").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    notebooks = [
        *(ROOT / "notebooks").glob("[0-9t]*.ipynb"),
        *(ROOT / "notebooks/experiments").glob("*.ipynb"),
    ]
    assert len(app) > 100 and len(notebooks) > 10
    assert {Path("labkit/shipped") / path.relative_to(ROOT) for path in (*app, *notebooks)} == {
        name for name in names if name.is_relative_to("labkit/shipped")
    }


def test_an_archive_of_the_sources_makes_the_same_wheel(wheel, tmp_path):
    backend = (
        "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
    )

    def build(what: str, source: Path) -> Path:
        command = [sys.executable, "-c", backend, what, str(tmp_path)]
        ended = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=100)
        return tmp_path / ended.stdout.splitlines()[-1]

    with tarfile.open(build("build_sdist", wheel.parent / "source")) as archive:
        # Python 3.11.2, which Debian 12 has, knows no filters yet.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = tmp_path.glob("labkit_training-*/")
    again = build("build_wheel", source)
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_labkit_demo_runs_and_names_commands_that_are_there(installed, demo):
    said, run = demo
    assert run.read_status().state == "finished"
    assert conclusion_of(read_notebook(run.path / "train.ipynb"))["run"] == str(run.path)
    assert "labkit dashboard" in said and "make " not in said
    assert not list(installed.folder.iterdir()), "nothing was asked for in the user's folder"


def test_a_run_names_no_commit_of_a_project_that_labkit_was_installed_for(installed, demo):
    assert demo[1].read_environment()["git_commit"] is None


@pytest.mark.timeout(1800)
def test_a_lesson_runs_to_its_end(installed):
    said = installed.run("labkit", "notebook", "run", "resnet", timeout=1500)
    assert str(installed.home / ".labkit" / "runs" / "notebooks" / "02_resnet.ipynb") in said


def test_lessons_are_copied_to_where_the_user_works(installed):
    assert len(installed.run("labkit", "lesson", "list").splitlines()) > 10
    said = installed.run("labkit", "lesson", "start", "4", "train")
    assert "wrote lessons/04_replicas.ipynb" in said
    copied = installed.folder / "lessons"
    try:
        assert sorted(path.name for path in copied.iterdir()) == ["04_replicas.ipynb", "train.ipynb"]
    finally:
        shutil.rmtree(copied)


@pytest.mark.browser
def test_the_dashboard_shows_a_run(installed, demo):
    with installed.dashboard() as address, browser_visit() as visit:
        visit.page.goto(f"{address}/live?run={demo[1].path.name}")
        visit.page.wait_for_function(IDLE)
        visit.page.get_by_text("Step 3 of 3").wait_for()
        visit.page.locator(".lk-chart").first.wait_for()
        visit.went_well()


def test_a_report_is_written_where_the_user_works(installed, demo):
    installed.run("labkit", "report", demo[1].path.name, "--output", "report.html")
    report = installed.folder / "report.html"
    assert demo[1].path.name in report.read_text()
    report.unlink()
