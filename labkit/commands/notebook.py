"""``labkit notebook run`` and ``labkit demo``: run a notebook, and say what came out."""

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from labkit.commands.flags import Flag
from labkit.errors import InputError, require_extra
from labkit.home import checkout
from labkit.notebook.execution import Execution, run_notebook
from labkit.notebook.file_parameters import values_from_text
from labkit.notebook.files import find_notebook, read_notebook
from labkit.plurals import counted
from labkit.run_directory.metrics import result_in_words

DEMO_NEEDS = ("papermill", "ipykernel", "ipywidgets", "matplotlib")  # by the notebook, too


def notebook_run(
    name: Annotated[str, Flag(metavar="NAME")],
    *,
    parameter: Annotated[
        tuple[tuple[str, str], ...],
        Flag(flags=("-p", "--parameter"), nargs=2, action="append", metavar=("NAME", "VALUE")),
    ] = (),
    output: Annotated[str | None, Flag(metavar="FILE")] = None,
    report_mode: bool = False,
) -> int:
    """Run the notebook. Returns the exit code.

    Args:
        name: A notebook's file, or the name or number of one of labkit's, such as train, 04_replicas, 04.
        parameter: A value for one of the notebook's parameters; may be given several times. In labkit's own
            notebooks, each flag of labkit train is a parameter: -p num_layers 20.
        output: Where to put the executed notebook. Default: into the directory of the run that the notebook
            shows, or into <home>/runs/notebooks.
        report_mode: Hides the code in the executed notebook.
    """
    require_extra("notebook", ("papermill", "ipykernel"), "labkit notebook run")
    notebook = find_notebook(name)
    given = [(one.replace("-", "_"), text) for one, text in parameter]
    values = values_from_text(read_notebook(notebook), given)
    done = run_notebook(notebook, output=output, parameters=values, report_mode=report_mode)
    if done.code == 0:
        lines = [("notebook", str(done.path))]
        if done.conclusion is not None:
            lines += _outcome(done.conclusion)
        _print_table([*lines, ("time", f"{done.seconds:.0f} s")], print)
    else:
        _report_end(done, print)
    return done.code


def demo() -> int:
    """Run the training notebook. Returns the exit code."""
    return run_demo()


def run_demo(
    *,
    output: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    announce: Callable[[str], None] = print,
) -> int:
    """Run ``notebooks/train.ipynb``, show its progress, and say what came out and how to look at it.

    Args:
        output, parameters, announce: see ``labkit.notebook.execution.run_notebook``.

    Returns the exit code: 0 done, 1 the notebook failed, 128 + signal when it was stopped.
    Raises InputError where there is no notebook, a package is missing or there is no place to write, and for
    what the notebook refuses.
    """
    require_extra("notebook", DEMO_NEEDS, "labkit demo")
    notebook = find_notebook("train")
    announce("this takes about two minutes on two cores, seconds where the run is finished already")
    done = run_notebook(notebook, output=output, parameters=parameters, announce=announce)
    if done.code:
        _report_end(done, announce)
    elif done.conclusion is None:
        raise InputError(f"{done.path} holds no result; run all of its cells, the last one too")
    else:
        _report(done, announce)
    return done.code


# ---- what to say ---------------------------------------------------------------------------------------


def _report_end(done: Execution, announce: Callable[[str], None]) -> None:
    """Say why the notebook isn't done."""
    if done.code > 128:
        announce("stopped; a training was told to save: the same command continues from there")
    else:
        announce(done.reason)


def _outcome(conclusion: Mapping[str, Any]) -> list[tuple[str, str]]:
    images = counted(conclusion["examples"], "image")
    known = {name: value for name, value in conclusion.items() if value is not None}
    *words, value = result_in_words(known).split()
    return [
        ("run", conclusion["run"]),
        ("data set", conclusion["data_note"]),
        ("devices", conclusion["devices"]),
        (f"{conclusion['split']} {' '.join(words)}", f"{value} ({images}, step {conclusion['step']})"),
    ]


def _report(done: Execution, announce: Callable[[str], None]) -> None:
    conclusion = done.conclusion
    assert conclusion is not None
    if not conclusion["did_work"]:
        announce("the run was finished already: nothing was trained, its results were drawn anew")
    if conclusion["banner"]:
        announce(conclusion["banner"])
    dashboard, jupyterlab = "labkit dashboard", f"jupyter lab {done.path}"
    if folder := checkout():  # whose environment may not be active
        dashboard = f"make app       (or, in {folder}: streamlit run app/main.py)"
        jupyterlab = f"make lab       (or: {jupyterlab})"
    lines = [
        ("notebook", str(done.path)),
        *_outcome(conclusion),
        ("time", f"{done.seconds:.0f} s"),
        ("dashboard", dashboard),
        ("JupyterLab", jupyterlab),
    ]
    _print_table(lines, announce)


def _print_table(lines: list[tuple[str, str]], announce: Callable[[str], None]) -> None:
    announce("")
    for name, text in lines:
        announce(f"{name + ':':<20} {text}")
