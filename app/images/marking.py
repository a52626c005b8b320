"""Marks of single images on pages: boxes to tick, buttons, and the data set that is made of the marks."""

import html
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import streamlit as st

from app import background, state
from app.acting import launches
from app.acting.buttons import again
from app.acting.draft import free_name, prepared
from app.images import cards
from app.markup import component, plain, show_command
from labkit import home
from labkit.data.manifest import Manifest, prepared_names
from labkit.data.marks import (
    EXCLUDE,
    KEEP,
    KINDS,
    LABEL,
    Corrections,
    Mark,
    Marks,
    Place,
    change_marks,
    corrections_of,
    marks_of,
    read_marks,
)
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

SCRIPT = Path(__file__).parent / "assets" / "ticks.js"
TAKE_BACK = "none"
BUTTONS = {LABEL: "Wrong label: it is", EXCLUDE: "Exclude", KEEP: "Keep", TAKE_BACK: "Take back"}
HELP = {
    LABEL: "The ticked images get the class that is chosen here",
    EXCLUDE: "The ticked images are left out of the corrected data set",
    KEEP: "The labels of the ticked images are right: they are no longer suspected",
    TAKE_BACK: "Removes the marks of the ticked images",
}
UNDO, FAILED, CHANGED, WANTED = "marks-undo", "marks-failed", "marks-changed", "marks-wanted"


@dataclass(frozen=True, eq=False)
class Markable:
    """An image that can be marked: card, place, and the numbers of its class and the suggested one."""

    card: cards.Card
    split: str
    index: int
    label: int
    suggested: int

    @property
    def place(self) -> Place:
        return self.split, self.index


Sections = Sequence[tuple[str, Sequence[Markable]]]  # each with the HTML of its heading


def known_marks(manifest: Manifest | None) -> Marks | None:
    """Return the marks of a data set; None where it can't have any. ``summary`` says why."""
    try:
        return read_marks(manifest) if manifest is not None and manifest.targets == "class" else None
    except InputError:
        return None


def grid(manifest: Manifest | None, sections: Sections, width: int, key: str) -> None:
    """Draw cards with what is marked, and where this visitor may act, boxes to tick and buttons.

    Args:
        manifest: of the images' data set; None: they can't be marked.
        sections: the cards.
        width: of a card, in pixels, at least.
        key: of the component.
    """
    marks = known_marks(manifest)
    ticks = marks is not None and state.may_act()
    drawn = []
    for heading, shown in sections:
        made = (_with_mark(one, marks.of(*one.place) if marks else None, ticks=ticks) for one in shown)
        drawn.append(heading + cards.grid(made, width))
    if manifest is None or not ticks:
        st.html("".join(drawn))
        return
    boxes = {f"{one.split} {one.index}": one for _, part in sections for one in part}

    def said() -> None:
        state.attempt(FAILED, say, manifest, boxes, getattr(st.session_state.get(key), "said", None))

    markup = "".join(drawn) + _buttons(manifest.classes)
    component(SCRIPT)(key=key, data={"markup": markup}, on_said_change=said, height="content")


def _with_mark(one: Markable, mark: Mark | None, *, ticks: bool) -> cards.Card:
    tick = f"{one.split} {one.index}" if ticks else ""
    if mark is None:
        return replace(one.card, tick=tick)
    words = {LABEL: f"marked: {mark.new}", EXCLUDE: "marked: excluded", KEEP: "marked: right"}[mark.mark]
    badge = f'<div class="lk-badge">{html.escape(words)}</div>'
    return replace(one.card, tick=tick, below=badge + one.card.below)


def _buttons(classes: Sequence[str]) -> str:
    options = "".join(f'<option value="{n}">{html.escape(name)}</option>' for n, name in enumerate(classes))
    select = f'<select aria-label="Right class"><option value="">as suggested</option>{options}</select>'
    made = [
        f'<button type="button" data-kind="{kind}" title="{HELP[kind]}">{label}</button>'
        + (select if kind == LABEL else "")
        for kind, label in BUTTONS.items()
    ]
    return (
        '<div class="lk-saying" role="group" aria-label="Mark the ticked images">'
        '<button type="button">Tick all</button><span class="lk-ticked" role="status"></span>'
        f"{''.join(made)}</div>"
    )


def say(manifest: Manifest, shown: Mapping[str, Markable], said: Any) -> None:
    """Mark the ticked images as a browser asks for it.

    Args:
        manifest: of their data set.
        shown: the images of the page, by the values of their boxes.
        said: ``kind`` of ``BUTTONS``; ``places``, the values of boxes; ``label``, the number of a class as
            text, or "" for those that are suggested.

    Raises InputError where this visitor may not act, and where the marks can't be written.
    """
    state.check_may_act()
    try:
        kind, label = str(said["kind"]), str(said["label"])
        chosen = [shown[place] for place in said["places"]]
        new = [manifest.classes[int(label) if label else one.suggested] for one in chosen]
    except (TypeError, KeyError, ValueError, IndexError):  # from another page, or drawn before
        return
    changes: dict[Place, Mark | None] = dict.fromkeys(one.place for one in chosen)
    if kind in KINDS:
        classes = {
            one.place: (manifest.classes[one.label], name) for one, name in zip(chosen, new, strict=True)
        }
        changes |= marks_of(manifest, kind, classes)
    st.session_state[UNDO] = manifest.checksum, change_marks(manifest, changes), changes
    st.session_state[CHANGED] = True


def changed() -> bool:
    """Return whether images were marked since the last call: what a fragment doesn't draw is drawn again."""
    return bool(st.session_state.pop(CHANGED, False))


def _undo(manifest: Manifest) -> None:
    """Take back what this visitor said last, where nobody has said something else since."""
    _, before, mine = st.session_state.pop(UNDO)
    now = read_marks(manifest)
    mine = {place: mark for place, mark in mine.items() if now.of(*place) == mark}
    change_marks(manifest, {place: before[place] for place in mine})


def summary(run: RunDirectory, manifest: Manifest | None) -> None:
    """Draw how many marks there are, and what can be done with them. Not for use within a fragment."""
    state.say_failure(FAILED)
    if manifest is None or manifest.targets != "class":
        return
    try:
        marks = read_marks(manifest)
    except InputError as error:
        st.warning(plain(f"No image can be marked: {error}"), icon=":material/label_off:")
        return
    counts = [marks.count(kind) for kind in (LABEL, EXCLUDE, KEEP)]
    if sum(counts):
        labels, excluded, kept = counts
        words = f"{counted(labels, 'wrong label')}, {excluded:,} to exclude, {kept:,} looked at and right"
        st.markdown(f"**{counted(sum(counts), 'mark')}** of {plain(manifest.dataset)}: {words}.")
    elif state.may_act():
        st.caption("Tick images, and say below them what is wrong: a corrected data set can be made of it.")
    if st.session_state.get(UNDO, ("",))[0] == manifest.checksum and state.may_act():
        undo = FAILED, _undo, manifest
        st.button("Undo", icon=":material/undo:", key="marks-undo-button", on_click=state.attempt, args=undo)
    try:
        corrections = corrections_of(manifest, marks)
    except InputError as error:
        if counts[0] + counts[1]:
            st.warning(plain(str(error)), icon=":material/block:")
        return
    _correction(run, manifest, corrections)


def _correction(run: RunDirectory, manifest: Manifest, corrections: Corrections) -> None:
    """Draw the command that makes the corrected data set; where it is made, the link to a new run on it."""
    made = _made_of(manifest, corrections)
    taken = prepared_names(manifest.directory.parent)
    name = made or free_name(f"{manifest.dataset[:50]}-fixed", taken.__contains__)
    if not made and state.may_act():
        name = st.text_input("Name of the corrected data set", name, width=320) or name
    arguments = ["data", "correct", manifest.dataset, "--name", name]
    if manifest.directory.parent != home.data_home():
        arguments += ["--data-dir", str(manifest.directory.parent)]
    show_command(shlex.join(["labkit", *arguments]))
    if made:
        st.markdown(f"The data set {state.as_code(made)} is made of these marks.")
        if state.may_act():
            told = "Opens the form for a new run: the configuration of this one, the corrected data."
            again(run, "Again with the corrected data", told, dataset=made)
    if made or not state.may_act():
        return
    st.button(
        "Make the corrected data set",
        icon=":material/auto_fix_high:",
        on_click=lambda: st.session_state.update({WANTED: (time.time_ns(), arguments)}),
        help="Runs this command. The data set of this run stays as it is.",
    )
    click, wanted = st.session_state.get(WANTED, (0, None))
    if wanted != arguments:
        return
    if background.shown(launches.command(arguments, click), "Correcting", "correct") is not None:
        del st.session_state[WANTED]
        st.rerun()


def _made_of(manifest: Manifest, corrections: Corrections) -> str:
    """Return the name of a data set that was made of these marks; "" without one."""
    wanted = manifest.checksum, corrections.sha256
    for name in prepared_names(manifest.directory.parent):
        found = prepared(manifest.directory.parent, name)
        if found is not None and (found.source["sha256"], found.source.get("marks_sha256")) == wanted:
            return name
    return ""
