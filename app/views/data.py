"""The data page: what the selected run's network is trained on, and the command that prepares it."""

import re
import shlex
from pathlib import Path
from typing import Any

import streamlit as st

from app import state
from app.acting.draft import prepared
from app.data_set import overview
from app.data_set.augmented import augmentation
from app.data_set.unusual import unusual
from app.data_set.wrong_labels import wrong_labels
from app.live_update import heading
from app.markup import one_of, plain, show_command
from labkit import home
from labkit.config.config import recorded_config
from labkit.config.data_sets import IMAGES, is_own, prepare_command
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_set_of, folder_to_prepare
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

SAMPLES, AUGMENTATION, BALANCE = "Samples", "Augmentation", "Balance and pixels"
DUPLICATES, UNUSUAL, LABELS, SOURCE = "Duplicates", "Unusual images", "Suspected labels", "Source"
# Where the ways out begin in the sentence of an error: the page shows the command below it.
WAYS_OUT = re.compile("; (?:prepare it with|prepared there|did you mean)")
PARTS = [SAMPLES, AUGMENTATION, BALANCE, DUPLICATES, UNUSUAL, LABELS, SOURCE]


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    heading(run, "Data")
    manifest = data_set_or_reason(run)
    if manifest is None:
        return
    counts = ", ".join(f"{split.count:,} {name}" for name, split in manifest.splits.items())
    height, width, _ = manifest.image_shape
    numbers = manifest.targets == "numbers"
    st.caption(
        f"{plain(manifest.dataset)}: {counts} images of {width}×{height} pixels, "
        f"{counted(manifest.num_classes, 'number') if numbers else f'{manifest.num_classes:,} classes'}"
    )
    part = one_of("Part", PARTS, "part", label_visibility="collapsed")
    if part == SOURCE:
        overview.source(manifest)
    elif part == AUGMENTATION:
        augmentation(run, manifest)
    elif part == LABELS and manifest.targets == "numbers":
        st.info(
            "Suspected labels are found for classes. Where labels are numbers, Predictions shows the images "
            "with the largest errors first.",
            icon=":material/info:",
        )
    elif (scan := overview.scan_of(manifest)) is not None:
        if part == BALANCE:
            overview.balance(scan)
        elif part == DUPLICATES:
            overview.duplicates(run, scan)
        elif part == UNUSUAL:
            unusual(run, scan)
        elif part == LABELS:
            wrong_labels(run, scan)
        else:
            overview.samples(scan)


def data_set_or_reason(run: RunDirectory) -> Manifest | None:
    """Return the run's data set. If it can't be used, say why and how to prepare it, and return None."""
    try:
        return data_set_of(run)
    except InputError as error:
        st.warning(plain(WAYS_OUT.split(str(error))[0]) + ".", icon=":material/folder_off:")
    try:
        command = command_to_prepare(run)
    except InputError:  # the configuration is damaged, which the sentence above says
        return None
    st.write("To prepare the data that this run was trained on:")
    show_command(command)
    return None


def command_to_prepare(run: RunDirectory) -> str:
    """Return the command that prepares the data set of a run where the run looks for it.

    Raises InputError if the run's configuration is damaged.
    """
    config = recorded_config(run)
    folder = str(folder_to_prepare(run, config))
    data = run.read_environment().get("data")
    recorded: dict[str, Any] = data if isinstance(data, dict) else {}
    source = recorded.get("source")
    if is_own(config.data.dataset):
        known = source if isinstance(source, dict) else {}
        kind, location = str(known.get("kind", IMAGES)), str(known.get("location", "DIR"))
        return prepare_command(config.data.dataset, folder, kind=kind, location=location)
    words = ["labkit", "data", "prepare", "--dataset", config.data.dataset, "--data-dir", folder]
    if isinstance(source, dict) and source.get("kind") in ("archive", "folder"):
        words += ["--archive", str(source.get("location", ""))]
    return shlex.join(
        words + _differences(recorded, prepared(home.expanded(Path(folder)), config.data.dataset))
    )


def _differences(recorded: dict[str, Any], present: Manifest | None) -> list[str]:
    """Return the flags for what was recorded otherwise than it is prepared now."""
    counts, classes = recorded.get("counts"), recorded.get("classes")
    if not isinstance(counts, dict) or not isinstance(classes, list):
        return []
    words: list[str] = []
    if present and [str(name) for name in classes] != list(present.classes):
        words += ["--classes", ",".join(map(str, classes))]
    # A data set that isn't there is prepared with the number of validation examples that labkit takes anyway.
    if present and counts.get("validation", 0) != present.count("validation"):
        words += ["--validation-size", str(counts.get("validation", 0))]
    elif present and counts.get("train") != present.count("train") and not words:
        words += ["--train-examples", str(counts.get("train"))]
    return words
