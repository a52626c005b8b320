"""The notebook's parameters: every flag, nothing else, whoever gives them."""

import ast
import json
import shlex
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit.config import Config, fields_by_name
from labkit.errors import InputError
from labkit.notebook.parameters import DEFAULTS, assigned_names, parameters_from_values
from labkit.presets import preset_values

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "train.ipynb"
OWN = dict(DEFAULTS)


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
        if name in ("preset", "overwrite"):
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
    assert parameters.config == Config.from_flat(
        {name: value for name, value in OWN.items() if name not in ("preset", "overwrite")}
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
    from labkit.cli import _parser, _typed

    given = {"num_gpus": 0, "job_dir": "/a folder/run", "gradient_clip_norm": 1.5, "nesterov": False}
    parameters = parameters_from_values(OWN, given)
    words = shlex.split(parameters.command)
    assert words[0] == "labkit"
    options = vars(_parser().parse_all(words[1:]))
    fields = fields_by_name()
    values = {name: _typed(fields[name], value) for name, value in options.items() if name in fields}
    assert Config.from_flat(values) == parameters.config


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
