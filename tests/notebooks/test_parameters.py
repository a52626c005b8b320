"""The notebook's parameters: every flag, nothing else, whoever gives them."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Optional

import nbformat
import papermill
import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.presets import preset_values
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS
from labkit.notebook.parameters import DEFAULTS, assigned_names, parameters_from_values
from tests.commands.in_process import config_of

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "train.ipynb"
OWN = dict(DEFAULTS)
BESIDE = ("preset", "overwrite", *CLUSTER_DEFAULTS)


def parameters_cell() -> str:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


# ---- the cell ------------------------------------------------------------------------------------------


def test_the_cell_says_what_defaults_says():
    namespace: dict[str, object] = {"Optional": Optional}
    exec(parameters_cell(), namespace)
    assert {name: namespace[name] for name in assigned_names(parameters_cell())} == DEFAULTS


def test_each_parameter_is_a_flag_with_its_type_and_a_comment():
    fields = fields_by_name()
    lines = parameters_cell().splitlines()
    for statement in ast.parse(parameters_cell()).body:
        assert isinstance(statement, ast.AnnAssign)
        name, annotation = statement.target.id, ast.unparse(statement.annotation)
        assert "  # " in lines[statement.lineno - 1], f"{name} has no comment"
        if name in BESIDE:
            continue
        kind = fields[name].type.__name__
        assert annotation == (f"Optional[{kind}]" if fields[name].optional else kind)


def test_papermill_knows_every_parameter_of_the_cell_and_of_the_documents():
    known = papermill.inspect_notebook(str(NOTEBOOK))
    assert set(known) == set(DEFAULTS)
    used = re.findall(r"papermill .*", (NOTEBOOK.parents[1] / "docs" / "quick-start.md").read_text())
    names = {name for line in used for name in re.findall(r" -p (\w+)", line)}
    assert {"num_gpus", "num_layers", "strategy"} <= names <= set(known)


def test_the_notebook_is_committed_clean():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


# ---- who counts ----------------------------------------------------------------------------------------


def test_names_are_found_however_they_are_assigned():
    source = "# Parameters: ours\na: int = 1  # one\nb = c = 2\nif True:\n    d = 3\nimport os"
    assert assigned_names(source) == ["a", "b", "c"]


def test_the_cell_as_it_stands():
    parameters = parameters_from_values(OWN, {})
    assert parameters.chosen == {}
    assert parameters.config.distribution.simulate_missing_gpus is True
    assert parameters.cluster is None
    assert parameters.config == Config.from_flat(
        {name: value for name, value in OWN.items() if name not in BESIDE}
    )


def test_given_beats_the_cell():
    parameters = parameters_from_values({**OWN, "seed": 1, "momentum": 0.5}, {"seed": 3})
    assert (parameters.config.run.seed, parameters.config.optimizer.momentum) == (3, 0.5)
    assert parameters.chosen == {"seed": 3, "momentum": 0.5}


def test_every_field_can_be_given():
    default = Config().flat()
    parameters = parameters_from_values(OWN, default)
    assert parameters.config == Config()


def test_overwrite_is_passed_on_and_must_be_a_boolean():
    assert parameters_from_values(OWN, {"overwrite": True}).overwrite is True
    with pytest.raises(InputError, match=r"^overwrite is 1; allowed: True or False$"):
        parameters_from_values(OWN, {"overwrite": 1})


# ---- presets -------------------------------------------------------------------------------------------


def test_a_preset_is_the_run_that_the_command_line_makes_of_it():
    parameters = parameters_from_values({**OWN, "preset": "smoke"}, {})
    assert parameters.config.fingerprint() == Config.from_flat(preset_values("smoke")).fingerprint()
    assert parameters.config.distribution.simulate_missing_gpus is True


def test_a_preset_gives_way_to_what_was_changed_or_given():
    own = {**OWN, "preset": "smoke", "seed": 5}
    parameters = parameters_from_values(own, {"learning_rate": DEFAULTS["learning_rate"]})
    expected = {**preset_values("smoke"), "seed": 5, "learning_rate": DEFAULTS["learning_rate"]}
    assert parameters.config.fingerprint() == Config.from_flat(expected).fingerprint()


@pytest.mark.parametrize(("preset", "said"), [("smok", "did you mean 'smoke'"), (3, "preset is 3; allowed")])
def test_an_unknown_preset_is_refused(preset, said):
    with pytest.raises(InputError, match=said):
        parameters_from_values(OWN, {"preset": preset})


# ---- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "given"), [({**OWN, "num_layer": 8}, {}), (OWN, {"num_layer": 8})], ids=["cell", "given"]
)
def test_an_unknown_name_is_refused_with_the_nearest_one(own, given):
    with pytest.raises(InputError, match=r"^unknown parameter 'num_layer'; did you mean 'num_layers'\?$"):
        parameters_from_values(own, given)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_layers": "20"}, "--num-layers is '20'"),
        ({"num_layers": 9}, "for example 8 or 14"),
        ({"train_steps": 0}, "at least 1"),
        ({"nesterov": 1}, "True or False"),
        ({"num_gpus": 3}, "multiples of 3"),
        ({"num_gpus": 0, "variable_strategy": "GPU"}, "--variable-strategy"),
        ({"momentum": True}, "--momentum is True"),
    ],
)
def test_values_that_are_not_allowed_are_refused_in_one_line(values, said):
    with pytest.raises(InputError, match=said) as caught:
        parameters_from_values(OWN, values)
    assert "\n" not in str(caught.value)


def test_the_command_makes_the_same_run():
    given = {"num_gpus": 0, "job_dir": "/a folder/run", "gradient_clip_norm": 1.5, "nesterov": False}
    parameters = parameters_from_values(OWN, given)
    words = shlex.split(parameters.command)
    assert words[0] == "labkit"
    assert config_of(words[1:]) == parameters.config


# ---- clusters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "cluster"),
    [
        ({"strategy": "local"}, None),
        ({"strategy": "multi_worker"}, LocalCluster(2)),
        ({"strategy": "multi_worker", "num_workers": 4, "sync": True}, LocalCluster(4)),
        ({"strategy": "parameter_server"}, LocalCluster(2, 1)),
        (
            {"strategy": "parameter_server", "num_workers": 3, "num_ps": 2, "sync": False},
            LocalCluster(3, 2),
        ),
    ],
)
def test_a_strategy_names_the_processes_that_train(given, cluster):
    assert parameters_from_values(OWN, given).cluster == cluster


def test_the_cell_can_ask_for_a_cluster_and_papermill_for_another():
    own = {**OWN, "strategy": "multi_worker", "num_workers": 4}
    assert parameters_from_values(own, {}).cluster == LocalCluster(4)
    given = {"strategy": "parameter_server", "num_ps": 3}
    assert parameters_from_values(own, given).cluster == LocalCluster(4, 3)
    without_lines = {"strategy": "parameter_server", "dataset": "shapes"}  # the cell's own were deleted
    assert parameters_from_values(without_lines, {}).cluster == LocalCluster(2, 1)


def test_a_cluster_and_a_preset_go_together():
    parameters = parameters_from_values({**OWN, "preset": "smoke", "strategy": "multi_worker"}, {})
    assert parameters.cluster == LocalCluster(2)
    assert parameters.config.fingerprint() == Config.from_flat(preset_values("smoke")).fingerprint()


SYNC, ASYNC = {"strategy": "multi_worker"}, {"strategy": "parameter_server"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "multi_workers"}, "unknown strategy 'multi_workers'; did you mean 'multi_worker'?"),
        ({"strategy": "zzz"}, "unknown strategy 'zzz'; known: local, multi_worker, parameter_server"),
        ({"strategy": 2}, "strategy is 2; allowed: local, multi_worker, parameter_server"),
        ({"num_worker": 2}, "unknown parameter 'num_worker'; did you mean 'num_workers'?"),
        ({**SYNC, "num_workers": 0}, "num_workers is 0; allowed: a whole number of at least 1"),
        ({**SYNC, "num_workers": "2"}, "num_workers is '2'; allowed: a whole number of at least 1"),
        ({**ASYNC, "num_workers": True}, "num_workers is True; allowed: a whole number"),
        ({**ASYNC, "num_ps": 0}, "num_ps is 0; allowed: a whole number of at least 1"),
        # What would have no effect is no choice.
        (
            {"num_workers": 2},
            "num_workers is 2 with strategy 'local', which is one process; leave it out",
        ),
        ({"num_ps": 1}, "num_ps is 1 with strategy 'local', which is one process"),
        ({**SYNC, "num_ps": 1}, "num_ps is 1 with strategy 'multi_worker', which has no parameter servers"),
        ({**ASYNC, "sync": True}, "sync is True with strategy 'parameter_server', which is asynchronous"),
        ({**SYNC, "sync": False}, "sync is False with strategy 'multi_worker', which is synchronous"),
        ({**SYNC, "sync": 1}, "--sync is 1; allowed: True or False"),
        # Whatever the tasks would refuse is refused before one is started.
        ({**SYNC, "num_workers": 3}, "--train-batch-size is 128 with 3 replicas; allowed: multiples of 3"),
        ({**SYNC, "num_gpus": 2, "num_workers": 8, "eval_batch_size": 8}, "--eval-batch-size is 8 with 16"),
        ({**ASYNC, "num_gpus": 2}, "--num-gpus is 2; allowed in asynchronous training: 0 or 1"),
        ({**ASYNC, "sync_batch_norm": True}, "--sync-batch-norm is not available in asynchronous training"),
        ({**SYNC, "bind": "203.0.113.9"}, "no port of '203.0.113.9' can be used"),
        ({**SYNC, "worker_hosts": "a:1,b:1"}, "--worker-hosts is 'a:1,b:1', but a notebook is no task"),
        (
            {"job_name": "worker"},
            "--job-name is 'worker', but a notebook is no task of a cluster; leave it out",
        ),
    ],
)
def test_what_no_cluster_can_do_is_refused_in_one_line(given, said):
    with pytest.raises(InputError) as caught:
        parameters_from_values(OWN, given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        (SYNC, ["cluster", "local", "--workers", "2", "--", "train"]),
        ({**ASYNC, "num_ps": 2}, ["cluster", "local", "--workers", "2", "--ps", "2", "--", "train"]),
    ],
)
def test_the_command_of_a_cluster_makes_the_same_cluster_and_run(given, start):
    from labkit.commands.main import parse
    from labkit.commands.train import training_of

    parameters = parameters_from_values(OWN, {**given, "job_dir": "/a folder/run"})
    words = shlex.split(parameters.command)
    assert words[: len(start) + 1] == ["labkit", *start]
    options = parse(words[1:]).keywords
    assert LocalCluster(options["workers"], options["ps"]) == parameters.cluster
    training = training_of(options["training"], "labkit", asynchronous=options["ps"] > 0)
    assert training == (parameters.config, False)


# ---- in a notebook -------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["with history", "without"])
def run_cell(request):
    """Return what runs a cell, as kernels do: nbval's requests leave the history alone."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()

    def run(source: str) -> object:
        result = shell.run_cell(source, store_history=request.param)
        return result.result if result.success else result.error_before_exec or result.error_in_exec

    run("from typing import Optional")
    run("from labkit.notebook.parameters import read_parameters, watch_parameters\nwatch_parameters()")
    yield run
    InteractiveShell.clear_instance()


CHECK = "read_parameters()"


def test_the_cells_own_values_count(run_cell):
    run_cell(parameters_cell())
    assert run_cell(CHECK).config == parameters_from_values(OWN, {}).config
    run_cell(parameters_cell().replace("train_steps: int = 600", "train_steps: int = 4"))
    assert run_cell(CHECK).config.run.train_steps == 4


def test_a_cell_that_was_put_right_is_right(run_cell, capsys):
    run_cell("# Parameters: ours\nnum_layer = 20")
    assert "did you mean 'num_layers'" in str(run_cell(CHECK))
    assert capsys.readouterr().out.count("\n") == 1  # no traceback
    run_cell("# Parameters: ours\nnum_layers = 20")
    assert run_cell(CHECK).config.model.num_layers == 20


def test_a_line_that_was_deleted_no_longer_counts(run_cell):
    run_cell("# Parameters: ours\nnum_layers = 20\nseed = 7")
    assert run_cell(CHECK).config.run.seed == 7
    run_cell("# Parameters: ours\nnum_layers = 20")
    assert run_cell(CHECK).config.run.seed == 0


def test_what_other_cells_define_is_no_parameter(run_cell):
    run_cell("# Parameters: ours\nnum_layers = 20")
    run_cell("seed = 3\nanything = 4")
    assert run_cell(CHECK).config.run.seed == 0
    assert run_cell(CHECK).config.model.num_layers == 20


def test_papermills_cell_counts_over_the_notebooks(run_cell):
    run_cell("# Parameters: ours\nnum_layers = 20\nseed = 1")
    run_cell("# Parameters\nseed = 2\nlabel_smoothing = 0.1\n")
    config = run_cell(CHECK).config
    assert (config.run.seed, config.optimizer.label_smoothing) == (2, 0.1)


def test_papermills_cell_counts_until_the_notebooks_is_run_again(run_cell):
    run_cell("# Parameters: ours\nseed = 1")
    run_cell("# Parameters\nseed = 2\nlabel_smoothing = 0.1\n")
    run_cell("watch_parameters()")  # the first cell again forgets nothing
    assert run_cell(CHECK).chosen == {"seed": 2, "label_smoothing": 0.1}
    run_cell("# Parameters: ours\nseed = 1")
    assert run_cell(CHECK).chosen == {"seed": 1}


def test_a_default_given_through_papermill_counts_over_a_preset(run_cell):
    run_cell("# Parameters: ours\npreset = 'smoke'")
    run_cell("# Parameters\nlearning_rate = 0.2\n")
    assert run_cell(CHECK).config.optimizer.learning_rate == 0.2


@pytest.mark.parametrize("cell", ["seed = 1", "# Parameters: ours\nseed = 1/0", "# Parameters: ours\nseed ="])
def test_without_a_parameters_cell_nothing_is_guessed(cell, run_cell):
    run_cell(cell)
    assert "the parameters cell was not run, or failed" in str(run_cell(CHECK))


def test_a_failed_cluster_shows_in_one_line(run_cell, capsys):
    program = "from labkit.notebook.cluster import ClusterFailed\nraise ClusterFailed('worker:1 is gone')"
    run_cell(program)
    assert capsys.readouterr().out == "ClusterFailed: worker:1 is gone\n"


def test_what_reads_parameters_and_starts_clusters_needs_no_tensorflow():
    modules = "labkit.notebook.parameters, labkit.notebook.prepared, labkit.cluster.launch"
    loaded = "bool({'tensorflow', 'keras', 'tensorboard'} & {*sys.modules})"
    program = f"import sys, {modules}; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
