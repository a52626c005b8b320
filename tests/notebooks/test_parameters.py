"""The notebook's parameters: every flag, nothing else, whoever gives them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Optional

import nbformat
import papermill
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell

from labkit.cluster.local import LocalCluster
from labkit.commands.main import parse
from labkit.commands.train import training_of
from labkit.config import Config
from labkit.config.presets import preset_values
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS
from labkit.notebook.parameters import DEFAULTS, assignments, parameters_from_values
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
    assert {name: namespace[name] for name in assignments(parameters_cell())} == DEFAULTS


def test_papermill_knows_every_parameter_of_the_cell_and_of_the_documents():
    known = papermill.inspect_notebook(str(NOTEBOOK))
    assert set(known) == set(DEFAULTS)
    used = re.findall(r"papermill .*", (NOTEBOOK.parents[1] / "docs" / "quick-start.md").read_text())
    names = {name for line in used for name in re.findall(r" -p (\w+)", line)}
    assert {"num_gpus", "num_layers", "strategy"} <= names <= set(known)


# ---- who counts ----------------------------------------------------------------------------------------


def test_the_cell_as_it_stands_chooses_nothing():
    parameters = parameters_from_values(OWN, {})
    assert parameters.chosen == {} and parameters.cluster is None
    assert parameters_from_values(OWN, {"overwrite": True}).overwrite is True


def test_a_networks_name_brings_its_depth_where_the_cell_has_another_one():
    # The kernel's variables have the value that papermill gave.
    config = parameters_from_values({**OWN, "model": "vgg11"}, {"model": "vgg11"}).config
    assert (config.model.model, config.model.num_layers) == ("vgg", 11)
    for untouched in (None, OWN["num_layers"]):  # the line below the network's
        config = parameters_from_values({**OWN, "model": "resnet14", "num_layers": untouched}, {}).config
        assert config.model.num_layers == 14
    with pytest.raises(InputError, match="--model resnet14 holds --num-layers, too"):
        parameters_from_values({**OWN, "model": "resnet14", "num_layers": 20}, {})


@settings(max_examples=40, deadline=None)
@given(
    preset=st.sampled_from(["", "smoke"]),
    changed=st.dictionaries(st.sampled_from(["seed", "train_steps"]), st.integers(1, 9)),
    given_too=st.dictionaries(st.sampled_from(["seed", "train_steps"]), st.integers(1, 9)),
)
def test_what_is_given_counts_over_the_cells_changes_and_these_over_a_preset(preset, changed, given_too):
    own = {**OWN, **changed, "preset": preset or OWN["preset"]}
    parameters = parameters_from_values(own, given_too)
    beginning = preset_values(preset) if preset else {n: v for n, v in OWN.items() if n not in BESIDE}
    expected = Config.from_flat({**beginning, **changed, **given_too})
    assert parameters.config.fingerprint() == expected.fingerprint()
    assert parameters.config.distribution.simulate_missing_gpus is True
    assert {**changed, **given_too}.items() <= parameters.chosen.items()


def test_a_default_that_is_given_counts_over_a_preset():
    given_too = {"learning_rate": DEFAULTS["learning_rate"]}
    parameters = parameters_from_values({**OWN, "preset": "smoke"}, given_too)
    assert "preset smoke\nchosen: learning_rate = " in repr(parameters)
    assert parameters.config.optimizer.learning_rate == DEFAULTS["learning_rate"]
    assert parameters_from_values(OWN, Config().flat()).config == Config(), "every field can be given"


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


SYNC, ASYNC = {"strategy": "multi_worker"}, {"strategy": "parameter_server"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_layer": 8}, "unknown parameter 'num_layer'; did you mean 'num_layers'?"),
        ({"preset": "smok"}, "unknown preset 'smok'; did you mean 'smoke'"),
        ({"preset": 3}, "preset is 3; allowed"),
        ({"overwrite": 1}, "overwrite is 1; allowed: True or False"),
        ({"num_layers": "20"}, "--num-layers is '20'"),
        ({"nesterov": 1}, "--nesterov is 1; allowed: True or False"),
        ({"num_gpus": 0, "variable_strategy": "GPU"}, "--variable-strategy"),
        ({"strategy": "multi_workers"}, "unknown strategy 'multi_workers'; did you mean 'multi_worker'?"),
        ({"strategy": 2}, "strategy is 2; allowed: local, multi_worker, parameter_server"),
        ({**SYNC, "num_workers": "2"}, "num_workers is '2'; allowed: a whole number of at least 1"),
        ({**ASYNC, "num_ps": 0}, "num_ps is 0; allowed: a whole number of at least 1"),
        # What would have no effect is no choice.
        ({"num_workers": 3}, "num_workers is 3 with strategy 'local', which is one process; leave it out"),
        ({**SYNC, "num_ps": 2}, "num_ps is 2 with strategy 'multi_worker', which has no parameter servers"),
        ({**ASYNC, "sync": True}, "sync is True with strategy 'parameter_server', which is asynchronous"),
        ({**SYNC, "sync": False}, "sync is False with strategy 'multi_worker', which is synchronous"),
        # Whatever the tasks would refuse is refused before one is started.
        ({**SYNC, "num_workers": 3}, "--train-batch-size is 128 with 3 replicas; allowed: multiples of 3"),
        ({**ASYNC, "num_gpus": 2}, "--num-gpus is 2; allowed in asynchronous training: 0 or 1"),
        ({**SYNC, "bind": "203.0.113.9"}, "no port of '203.0.113.9' can be used"),
        (
            {"job_name": "worker"},
            "--job-name is 'worker', but a notebook is no task of a cluster; leave it out",
        ),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused_in_one_line_whoever_says_it(given, said):
    for values in ((OWN, given), ({**OWN, **given}, {})):
        with pytest.raises(InputError) as caught:
            parameters_from_values(*values)
        assert str(caught.value).startswith(said)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"num_gpus": 0, "gradient_clip_norm": 1.5, "nesterov": False}, ["train"]),
        (SYNC, ["cluster", "local", "--workers", "2", "--", "train"]),
        ({**ASYNC, "num_ps": 2}, ["cluster", "local", "--workers", "2", "--ps", "2", "--", "train"]),
    ],
)
def test_the_command_makes_the_same_cluster_and_run(given, start):
    parameters = parameters_from_values(OWN, {**given, "job_dir": "/a folder/run"})
    words = shlex.split(parameters.command)
    assert words[: len(start) + 1] == ["labkit", *start]
    if parameters.cluster is None:
        assert config_of(words[1:]) == parameters.config
        return
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


def test_a_cell_that_was_put_right_is_right(run_cell, capsys):
    run_cell("# Parameters: ours\nnum_layer = 20")
    assert "did you mean 'num_layers'" in str(run_cell(CHECK))
    assert capsys.readouterr().out.count("\n") == 1  # no traceback
    run_cell(parameters_cell().replace("train_steps: int = 600", "train_steps: int = 4"))
    assert run_cell(CHECK).config.run.train_steps == 4


def test_neither_a_deleted_line_nor_what_other_cells_define_counts(run_cell, capsys):
    run_cell("# Parameters: ours\nnum_layers = 20\nseed = 7")
    assert run_cell(CHECK).config.run.seed == 7
    run_cell("# Parameters: ours\nnum_layers = 20")
    run_cell("seed = 3\nanything = 4")
    assert run_cell(CHECK) and "another cell" not in capsys.readouterr().out
    run_cell("for num_layers in (8, 14):\n    pass")  # also with a name that the parameters have
    config = run_cell(CHECK).config
    assert "note: another cell changed num_layers; only values in the parameters" in capsys.readouterr().out
    assert (config.run.seed, config.model.num_layers) == (0, 20)


def test_values_that_are_assigned_together_count(run_cell):
    run_cell("# Parameters: ours\nnum_layers, (seed, momentum) = 14, (7, 0.5)")
    config = run_cell(CHECK).config
    assert (config.model.num_layers, config.run.seed, config.optimizer.momentum) == (14, 7, 0.5)


def test_papermills_cell_counts_until_the_notebooks_is_run_again(run_cell):
    run_cell("# Parameters: ours\nseed = 1")
    run_cell("# Parameters\nseed = 2\nlabel_smoothing = 0.1\n")
    run_cell("watch_parameters()")  # the first cell again forgets nothing
    assert run_cell(CHECK).chosen == {"seed": 2, "label_smoothing": 0.1}
    run_cell("# Parameters: ours\nseed = 1")
    assert run_cell(CHECK).chosen == {"seed": 1}


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
