"""The notebook's parameters: every flag, nothing else, whoever gives them."""

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.presets import preset_values
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS
from labkit.notebook.parameters import DEFAULTS, assigned_names, parameters_from_values

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "train.ipynb"
OWN = dict(DEFAULTS)
BESIDE = ("preset", "overwrite", *CLUSTER_DEFAULTS)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("LABKIT_PARAMETERS", raising=False)


def parameters_cell() -> str:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


# ---- the cell ------------------------------------------------------------------------------------------


def test_the_cell_says_what_defaults_says():
    namespace: dict[str, object] = {}
    exec(parameters_cell(), namespace)
    assert {name: namespace[name] for name in assigned_names([parameters_cell()], injected=False)} == DEFAULTS


def test_each_parameter_is_a_flag_with_its_type_and_a_comment():
    fields = fields_by_name()
    lines = parameters_cell().splitlines()
    for statement in ast.parse(parameters_cell()).body:
        assert isinstance(statement, ast.AnnAssign)
        name, annotation = statement.target.id, ast.unparse(statement.annotation)
        assert "  # " in lines[statement.lineno - 1], f"{name} has no comment"
        if name in BESIDE:
            continue
        optional = " | None" if fields[name].optional else ""
        assert annotation == fields[name].type.__name__ + optional


def test_the_notebook_is_committed_clean():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


# ---- who counts ----------------------------------------------------------------------------------------


def test_the_last_version_of_each_cell_counts():
    history = [
        "# Parameters: ours\nseed = 1\nnum_layer = 3",
        "# Parameters\nseed = 2",
        "x = 1",
        "# Parameters: ours\nseed = 4",
    ]
    assert assigned_names(history, injected=False) == ["seed"]
    assert assigned_names(history, injected=True) == ["seed"]


def test_names_are_found_however_they_are_assigned():
    source = "# Parameters: ours\na: int = 1  # one\nb = c = 2\nif True:\n    d = 3\nimport os"
    assert assigned_names([source], injected=False) == ["a", "b", "c"]
    assert assigned_names(["seed = 1"], injected=False) == []


def test_the_cell_as_it_stands():
    parameters = parameters_from_values(OWN, {})
    assert parameters.chosen == {}
    assert parameters.config.distribution.simulate_missing_gpus is True
    assert parameters.cluster is None
    assert parameters.config == Config.from_flat(
        {name: value for name, value in OWN.items() if name not in BESIDE}
    )


def test_given_beats_variable_beats_cell(monkeypatch):
    monkeypatch.setenv("LABKIT_PARAMETERS", json.dumps({"seed": 2, "train_steps": 2}))
    parameters = parameters_from_values({**OWN, "seed": 1, "train_steps": 1, "momentum": 0.5}, {"seed": 3})
    run = parameters.config.run
    assert (run.seed, run.train_steps, parameters.config.optimizer.momentum) == (3, 2, 0.5)
    assert set(parameters.from_variable) == {"seed", "train_steps"}
    assert parameters.chosen == {"seed": 3, "train_steps": 2, "momentum": 0.5}
    assert "LABKIT_PARAMETERS" in str(parameters)


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


@pytest.mark.parametrize("where", ["cell", "variable", "given"])
def test_an_unknown_name_is_refused_with_the_nearest_one(where, monkeypatch):
    own, given = dict(OWN), {}
    if where == "cell":
        own["num_layer"] = 8
    elif where == "variable":
        monkeypatch.setenv("LABKIT_PARAMETERS", '{"num_layer": 8}')
    else:
        given["num_layer"] = 8
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


@pytest.mark.parametrize("text", ["train_steps=20", "[1]", "{", '"x"'])
def test_a_variable_that_is_no_object_is_refused(text, monkeypatch):
    monkeypatch.setenv("LABKIT_PARAMETERS", text)
    with pytest.raises(InputError, match="allowed: a JSON object"):
        parameters_from_values(OWN, {})


def test_the_command_makes_the_same_run():
    from labkit.commands.arguments import typed
    from labkit.commands.main import parse

    given = {"num_gpus": 0, "job_dir": "/a folder/run", "gradient_clip_norm": 1.5, "nesterov": False}
    parameters = parameters_from_values(OWN, given)
    words = shlex.split(parameters.command)
    assert words[0] == "labkit"
    options = vars(parse(words[1:])[1])
    fields = fields_by_name()
    values = {name: typed(fields[name], value) for name, value in options.items() if name in fields}
    assert Config.from_flat(values) == parameters.config


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


def test_the_cell_and_the_variable_can_ask_for_a_cluster(monkeypatch):
    own = {**OWN, "strategy": "multi_worker", "num_workers": 4}
    assert parameters_from_values(own, {}).cluster == LocalCluster(4)
    monkeypatch.setenv("LABKIT_PARAMETERS", '{"strategy": "parameter_server", "num_ps": 3}')
    assert parameters_from_values(own, {}).cluster == LocalCluster(4, 3)
    monkeypatch.delenv("LABKIT_PARAMETERS")
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
        ({**ASYNC, "sync_batch_norm": True}, "--sync-batch-norm needs replicas in step"),
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
    from labkit.commands.arguments import training_of
    from labkit.commands.main import parse

    parameters = parameters_from_values(OWN, {**given, "job_dir": "/a folder/run"})
    words = shlex.split(parameters.command)
    assert words[: len(start) + 1] == ["labkit", *start]
    _, options, _ = parse(words[1:])
    assert LocalCluster(options.workers, options.ps) == parameters.cluster
    assert training_of(options, "labkit") == (parameters.config, False)


# ---- in a notebook -------------------------------------------------------------------------------------


@pytest.fixture
def shell():
    """An IPython session as a kernel has it; cells go through ``run_cell``."""
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def check(shell) -> object:
    result = shell.run_cell(
        "from labkit.notebook.parameters import read_parameters\nread_parameters()", store_history=True
    )
    return result.result if result.success else result.error_in_exec


def test_a_cell_that_was_put_right_is_right(shell, capsys):
    shell.run_cell("# Parameters: ours\nnum_layer = 20", store_history=True)
    assert "did you mean 'num_layers'" in str(check(shell))
    assert capsys.readouterr().out.count("\n") == 1  # no traceback
    shell.run_cell("# Parameters: ours\nnum_layers = 20", store_history=True)
    assert check(shell).config.model.num_layers == 20


def test_a_line_that_was_deleted_no_longer_counts(shell):
    shell.run_cell("# Parameters: ours\nnum_layers = 20\nseed = 7", store_history=True)
    assert check(shell).config.run.seed == 7
    shell.run_cell("# Parameters: ours\nnum_layers = 20", store_history=True)
    assert check(shell).config.run.seed == 0


def test_what_other_cells_define_is_no_parameter(shell):
    shell.run_cell("# Parameters: ours\nnum_layers = 20", store_history=True)
    shell.run_cell("seed = 3\nanything = 4", store_history=True)
    assert check(shell).config.run.seed == 0
    assert check(shell).config.model.num_layers == 20


def test_papermills_cell_counts_over_the_notebooks(shell):
    shell.run_cell("# Parameters: ours\nnum_layers = 20\nseed = 1", store_history=True)
    shell.run_cell("# Parameters\nseed = 2\nlabel_smoothing = 0.1\n", store_history=True)
    config = check(shell).config
    assert (config.run.seed, config.optimizer.label_smoothing) == (2, 0.1)


def test_a_failed_cluster_shows_in_one_line(shell, capsys):
    check(shell)
    capsys.readouterr()
    program = "from labkit.notebook.cluster import ClusterFailed\nraise ClusterFailed('worker:1 is gone')"
    shell.run_cell(program, store_history=True)
    assert capsys.readouterr().out == "ClusterFailed: worker:1 is gone\n"


def test_what_reads_parameters_and_starts_clusters_needs_no_tensorflow():
    modules = "labkit.notebook.parameters, labkit.notebook.training, labkit.cluster.launch"
    loaded = "bool({'tensorflow', 'keras', 'tensorboard'} & {*sys.modules})"
    program = f"import sys, {modules}; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
