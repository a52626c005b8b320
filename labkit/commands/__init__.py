"""The commands of ``labkit``: their names, what they do, and the modules that hold them.

A module is imported when one of its commands is chosen. ``labkit data list`` is its function ``data_list``,
whose parameters are the flags (see ``flags``), and which returns the exit code.
"""

from dataclasses import dataclass

__all__ = ["COMMANDS", "GROUPS", "INSTEAD", "Command"]


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        module: its name; one that begins with a dot is of ``labkit.commands``.
        help: what it does, in a line.
    """

    module: str
    help: str


# By headings, in the order of the help. Each text fits into a line of a terminal with 80 columns.
GROUPS: dict[str, dict[str, Command]] = {
    "Data and training": {
        "data prepare": Command(".data", "Download or read a data set and write it as TFRecords."),
        "data correct": Command(".data", "Make a data set with the labels that people corrected."),
        "data list": Command(".data", "List the prepared data sets."),
        "train": Command(".train", "Train a run, or continue it."),
        "resume": Command(".resume", "Continue a run with its own configuration."),
        "stop": Command(".resume", "Ask a training to save and stop, and wait for it."),
        "evaluate": Command(".evaluate", "Evaluate a checkpoint, or with --watch each one as it appears."),
        "predict": Command(".predict", "Say what a run's network sees on pictures."),
        "serve": Command(".predict", "Answer what a run's network sees on pictures that are sent."),
    },
    "Runs": {
        "runs": Command(".runs", "List the runs."),
        "show": Command(".runs", "Show a run: state, results, configuration and checkpoints."),
        "watch": Command(".watch", "Say when runs end, fail, stall or reach a value."),
        "compare": Command(".compare", "Compare runs, or train several models with one budget."),
        "search": Command(".search", "Train with other settings, and keep the best by validation."),
        "fork": Command(".resume", "Go on from a step of a run with other settings, in a run of its own."),
        "trust": Command(".resume", "Consent to run the code that a run has kept."),
        "rename": Command(".manage", "Rename a run."),
        "note": Command(".manage", "Write tags and notes on a run or its steps, or archive it."),
        "delete": Command(".manage", "Delete a run, or move it to the trash."),
        "restore": Command(".manage", "Bring back a run from the trash."),
    },
    "Results": {
        "dashboard": Command(".dashboard", "Open the dashboard in a browser."),
        "tensorboard": Command(".dashboard", "Start TensorBoard on runs."),
        "report": Command(".export", "Write runs as one HTML file to share."),
        "metrics": Command(".export", "Write all metrics of a run as CSV or Parquet."),
        "export": Command(".export", "Write a run as a Keras, SavedModel, TFLite or ONNX file."),
    },
    "A closer look": {
        "models": Command(".models", "List the networks, or show one stage by stage."),
        "profile": Command(".profile", "Show where the time of a training step goes."),
        "replicas": Command(".compare", "Train on 1, 2 and 4 replicas and compare the losses."),
        "trace": Command(".export", "Write the last steps of a cluster on one time axis, for Perfetto."),
        "replay": Command(".replay", "Make a step again and show its batch, losses and gradients."),
        "verify": Command(".replay", "Make steps of a run again and check that they are what it says."),
    },
    "Runs of other programs and machines": {
        "import csv": Command(".imports", "Make a run of a CSV file."),
        "import tensorboard": Command(".imports", "Make runs of TensorBoard's event files."),
        "pull": Command(".imports", "Follow the runs of another machine over ssh."),
    },
    "Clusters": {
        "cluster local": Command(".cluster", "Train with several processes on this machine."),
        "cluster slurm": Command(".cluster", "Print a batch script for Slurm."),
        "cluster kubernetes": Command(".cluster", "Print the manifests of an Indexed Job for Kubernetes."),
        "cluster tf-config": Command(".cluster", "Print TF_CONFIG for one task."),
        "cluster slurm-task": Command(".cluster", "Within srun: run a command as this task."),
        "cluster kubernetes-task": Command(
            ".cluster", "Within a pod: run a command as the task of its index."
        ),
    },
    "Lessons and notebooks": {
        "lesson list": Command("course.lessons.commands", "List the lessons."),
        "lesson start": Command("course.lessons.commands", "Write copies of lessons, without solutions."),
        "lesson check": Command("course.lessons.commands", "Check the saved answer of an exercise, or all."),
        "lesson export": Command("course.lessons.teachers", "Write assignments for nbgrader or Otter."),
        "lesson report": Command("course.lessons.teachers", "Print a signed report of a folder of answers."),
        "lesson board": Command("course.lessons.teachers", "Order the runs submitted to the capstone."),
        "notebook run": Command(".notebook", "Run a notebook with parameters of your choice."),
        "demo": Command(".notebook", "Run the training notebook and say where to look."),
    },
    "This machine": {
        "doctor": Command(".doctor", "Check this machine and say how to solve each problem."),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

# What people type for a command that has another name here.
INSTEAD = {
    "clean": "delete",
    "continue": "resume",
    "eval": "evaluate",
    "fit": "train",
    "history": "metrics",
    "info": "show",
    "list": "runs",
    "logs": "show",
    "ls": "runs",
    "move": "rename",
    "mv": "rename",
    "plot": "report",
    "ps": "runs",
    "remove": "delete",
    "rm": "delete",
    "save": "export",
    "status": "show",
    "test": "evaluate",
    "ui": "dashboard",
}
