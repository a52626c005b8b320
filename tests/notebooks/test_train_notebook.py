"""``notebooks/train.ipynb`` run by papermill, as a user would run it."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np
import pytest
from PIL import Image

import labkit
from labkit.notebook.files import conclusion_of, read_notebook
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "train.ipynb"
TIME_LIMIT = 200
SMALL = {"dataset": "shapes", "train_steps": 4, "train_batch_size": 32, "validate_every_steps": 0}

pytestmark = [pytest.mark.long, pytest.mark.slow]


@dataclass(frozen=True)
class Execution:
    """An executed notebook with the exit code and output of papermill."""

    path: Path
    code: int
    said: str

    @property
    def notebook(self) -> nbformat.NotebookNode:
        return nbformat.read(self.path, as_version=4)

    @property
    def text(self) -> str:
        """All text in the notebook's outputs."""
        return "\n".join(
            output.get("text", "") + "".join(output.get("data", {}).get("text/plain", ""))
            for cell in self.notebook.cells
            for output in cell.get("outputs", ())
        )

    def outputs(self, cell_id: str, *kinds: str) -> list[nbformat.NotebookNode]:
        (cell,) = [cell for cell in self.notebook.cells if cell.id == cell_id]
        return [output for output in cell.outputs if not kinds or output.output_type in kinds]

    def mime_types(self, cell_id: str) -> list[str]:
        return [kind for output in self.outputs(cell_id) for kind in output.get("data", {})]

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(conclusion_of(read_notebook(self.path))["run"])


def papermill(folder: Path, *, source: Path = NOTEBOOK, **parameters: object) -> Execution:
    """Run the notebook, or a part of it, from ``folder``, which isn't its own folder."""
    output = folder / "out.ipynb"
    given = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    process = subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", str(source), str(output), *given],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    return Execution(output, process.returncode, process.stdout + process.stderr)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory, shapes) -> Execution:
    return papermill(tmp_path_factory.mktemp("cpu"), num_gpus=0, **SMALL)


def test_it_runs_from_any_folder_and_its_pictures_need_no_kernel(on_cpu, session_home):
    assert on_cpu.code == 0, on_cpu.said
    assert on_cpu.run.path.parent == session_home / "runs"
    status = on_cpu.run.read_status()
    assert (status.state, status.step) == ("finished", SMALL["train_steps"])
    data = on_cpu.run.read_environment()["data"]
    metrics = json.loads((on_cpu.run.predictions_path / "test.json").read_text())
    for said in (
        f"shapes in {data['directory']}",
        "devices: CPU",
        "One process trained this run",
        f"test accuracy {metrics['accuracy']:.4f}",
    ):
        assert said in on_cpu.text
    assert "SIMULATED" not in on_cpu.text
    for cell in ("images", "curves", "confusion", "classes", "wrong"):
        kinds = on_cpu.mime_types(cell)
        assert "image/png" in kinds, f"cell {cell} shows {kinds}"
        assert "application/vnd.jupyter.widget-view+json" not in kinds
    conclusion = conclusion_of(read_notebook(on_cpu.path))
    assert conclusion["accuracy"] == pytest.approx(metrics["accuracy"])
    assert conclusion["examples"] == metrics["examples"]


def test_running_it_again_trains_nothing_and_shows_everything(on_cpu, tmp_path):
    metrics = on_cpu.run.metrics_path.read_bytes()
    again = papermill(tmp_path, num_gpus=0, **SMALL)
    assert again.code == 0, again.said
    assert "nothing left to do" in again.text
    assert again.run.metrics_path.read_bytes() == metrics
    for cell in ("curves", "confusion", "wrong"):
        assert "image/png" in again.mime_types(cell)
    assert (
        conclusion_of(read_notebook(again.path))["accuracy"]
        == conclusion_of(read_notebook(on_cpu.path))["accuracy"]
    )


def test_what_it_says_of_the_data_is_true_of_own_pictures(tmp_path):
    random = np.random.default_rng(0)
    for name in ("apple", "pear", "plum", "quince"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            pixels = random.integers(0, 256, (64, 64, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    labkit.prepare_data(images=tmp_path / "pictures", name="fruit", data_dir=tmp_path / "data", image_size=64)
    book = nbformat.read(NOTEBOOK, as_version=4)
    told = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert not re.search(r"\d×\d|\d classes|\bten\b|\d,000", told), "the text has numbers of one data set"
    book.cells = book.cells[: 1 + [cell.id for cell in book.cells].index("model")]
    nbformat.write(book, tmp_path / "beginning.ipynb")
    given = {
        "dataset": "fruit",
        "data_dir": tmp_path / "data",
        "num_gpus": 0,
        "train_steps": 4,
        "train_batch_size": 16,
    }
    execution = papermill(tmp_path, source=tmp_path / "beginning.ipynb", **given)
    assert execution.code == 0, execution.said
    (model,) = [
        output.data["text/markdown"]
        for output in execution.outputs("model")
        if "text/markdown" in output.get("data", {})
    ]
    assert model == (
        "This network works at 64×64, 32×32, 16×16 pixels. Its last layer has one output for each of the "
        "4 classes."
    )
    assert "classes: apple, pear, plum, quince" in execution.text
    assert "64×64×3" in execution.text


def test_simulated_gpus_are_announced_and_any_flag_is_accepted(tmp_path):
    # label_smoothing and evaluate_test are not in the notebook's own cell.
    execution = papermill(tmp_path, num_gpus=2, label_smoothing=0.1, evaluate_test=False, **SMALL)
    assert execution.code == 0, execution.said
    environment = execution.run.read_environment()
    assert environment["simulated"] is True
    assert environment["replicas"] == 2
    assert environment["banner"].startswith("SIMULATED")
    assert environment["banner"] in execution.text
    config = execution.run.read_config()
    assert config["optimizer"]["label_smoothing"] == 0.1
    # The test set isn't evaluated, so the predictions are of the validation set.
    assert conclusion_of(read_notebook(execution.path))["split"] == "validation"
    assert not (execution.run.predictions_path / "test.json").exists()


CLUSTER = {**SMALL, "train_steps": 30, "log_every_steps": 10, "num_gpus": 0}


def test_two_workers_train_and_every_cell_works_for_a_cluster(tmp_path):
    multi_worker = papermill(tmp_path, strategy="multi_worker", num_workers=2, seed=1, **CLUSTER)
    assert multi_worker.code == 0, multi_worker.said
    status, environment = multi_worker.run.read_status(), multi_worker.run.read_environment()
    assert (status.state, status.step) == ("finished", 30)
    assert environment["replicas"] == 2
    assert set(read_worker_metrics(multi_worker.run.cluster_path)) == {"worker:0", "worker:1"}
    assert "devices: 2 synchronous workers, each CPU" in multi_worker.text
    assert "labkit cluster local --workers 2 -- train --dataset shapes" in multi_worker.text
    assert "[worker:0] step 30/30" in multi_worker.text
    assert "[worker:1] " in multi_worker.text
    # The progress bar and its curve are made from the run directory.
    (bar,) = multi_worker.outputs("training", "display_data")
    assert bar.data["text/plain"].startswith("30/30 steps (100%)  loss ")
    assert "<polyline" in bar.data["text/html"]
    for cell in ("curves", "workers", "confusion", "classes", "wrong"):
        assert "image/png" in multi_worker.mime_types(cell)
    conclusion = conclusion_of(read_notebook(multi_worker.path))
    assert conclusion["devices"] == "2 synchronous workers, each CPU"
    assert (conclusion["split"], conclusion["examples"], conclusion["did_work"]) == ("test", 2000, True)


def test_workers_train_with_a_parameter_server(tmp_path):
    execution = papermill(tmp_path, strategy="parameter_server", num_workers=2, num_ps=1, seed=2, **CLUSTER)
    assert execution.code == 0, execution.said
    status = execution.run.read_status()
    assert (status.state, status.step) == ("finished", 30)
    assert set(read_worker_metrics(execution.run.cluster_path)) == {"worker:0", "worker:1"}
    assert "[ps:0] " in execution.text
    assert "image/png" in execution.mime_types("workers")
    conclusion = conclusion_of(read_notebook(execution.path))
    assert conclusion["devices"] == "2 asynchronous workers with 1 parameter server"
    metrics = json.loads((execution.run.predictions_path / "test.json").read_text())
    assert conclusion["accuracy"] == pytest.approx(metrics["accuracy"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_gpu": 2}, "InputError: unknown parameter 'num_gpu'; did you mean 'num_gpus'?"),
        (
            {"num_gpus": 99, "train_batch_size": 99, "eval_batch_size": 99, "simulate_missing_gpus": False},
            "InputError: --num-gpus is 99",
        ),
    ],
)
def test_invalid_parameters_end_the_notebook_with_one_line(given, said, tmp_path, session_home):
    runs_before = set(session_home.glob("runs/*"))
    execution = papermill(tmp_path, **given)
    assert execution.code != 0
    assert said in execution.said
    (error,) = [
        output
        for cell in execution.notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]
    assert len(error.traceback) == 1
    assert "\n" not in error.traceback[0]
    assert set(session_home.glob("runs/*")) == runs_before
