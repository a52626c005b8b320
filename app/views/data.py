"""The data page: what the selected run's network is trained on."""

import re

import streamlit as st

from app import state
from app.data_set import overview
from app.data_set.augmentation import augmentation
from app.data_set.prepare_command import prepare_command
from app.data_set.wrong_labels import wrong_labels
from app.images.text import plain
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["data_set_or_reason", "page"]

SAMPLES, AUGMENTATION, BALANCE = "Samples", "Augmentation", "Balance and pixels"
DUPLICATES, LABELS, SOURCE = "Duplicates", "Suspected labels", "Source"
# Where the ways out begin in the sentence of an error: the page shows the command below it.
WAYS_OUT = re.compile("; (?:prepare it with|prepared there|did you mean)")
PARTS = [SAMPLES, AUGMENTATION, BALANCE, DUPLICATES, LABELS, SOURCE]


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    st.subheader(f"Data · {plain(run.name)}", anchor=False)
    manifest = data_set_or_reason(run)
    if manifest is None:
        return
    counts = ", ".join(f"{split.count:,} {name}" for name, split in manifest.splits.items())
    height, width, _ = manifest.image_shape
    st.caption(
        f"{plain(manifest.dataset)}: {counts} images of {width}×{height} pixels, "
        f"{manifest.num_classes:,} classes"
    )
    part = st.segmented_control(
        "Part",
        PARTS,
        default=SAMPLES,
        key="part",
        required=True,
        bind="query-params",
        label_visibility="collapsed",
    )
    if part == SOURCE:
        overview.source(manifest)
    elif part == AUGMENTATION:
        augmentation(run, manifest)
    elif (scan := overview.scan_of(manifest)) is not None:
        if part == BALANCE:
            overview.balance(scan)
        elif part == DUPLICATES:
            overview.duplicates(scan)
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
        command = prepare_command(run)
    except InputError:  # the configuration is damaged, which the sentence above says
        return None
    st.write("To prepare the data that this run was trained on:")
    st.code(command, language="bash")
    return None
