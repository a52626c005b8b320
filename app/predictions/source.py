"""Which predictions a page shows: those of a split and a kept checkpoint, recorded or computed."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from app import background
from app.images.answers import KEEP_SOME
from app.images.subject import recorded_step, split_control
from app.markup import plain, show_command
from app.predictions.kept import Forgotten, Question, ask_evaluation, ask_forgetting, known_evaluation
from app.state import changed_at
from labkit.analysis.predictions import Predictions, load_predictions, signature
from labkit.config.config import recorded_by
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

SPLITS = ["test", "validation", "train"]
RECORDED = "recorded evaluation"


@dataclass(frozen=True)
class Source:
    """``step``: of the checkpoint whose network is asked; None: what an evaluation recorded."""

    run: RunDirectory
    split: str
    step: int | None


def _recorded(run: RunDirectory, split: str) -> bool:
    return signature(run, split)[0] != (0, 0)


def watched(run: RunDirectory) -> object:
    """Return what changes when there is something else to choose."""
    return tuple(signature(run, split) for split in SPLITS), tuple(run.checkpoint_steps())


def choose_split(run: RunDirectory) -> str:
    """Draw the choice of the split: at first one that has a recorded evaluation."""
    first = next((name for name in SPLITS if _recorded(run, name)), SPLITS[0])
    return split_control(SPLITS[::-1], "split", first)


def choose_checkpoint(
    run: RunDirectory, split: str, key: str, label: str = "Checkpoint", unlike: Source | None = None
) -> Source | None:
    """Draw the choice of the checkpoint; None if there is nothing to choose.

    A checkpoint that is removed while it is shown stays chosen, so that the page doesn't change on its own.
    At first it is the recorded evaluation or the newest checkpoint, or the first one other than ``unlike``.
    """
    options = [f"step {step}" for step in reversed(run.checkpoint_steps())]
    if _recorded(run, split):
        options.insert(0, RECORDED)
    chosen = st.session_state.get(key) or st.query_params.get(key)
    same_run = st.session_state.setdefault(f"{key}-run", str(run.path)) == str(run.path)
    st.session_state[f"{key}-run"] = str(run.path)
    if chosen and chosen not in options:
        if same_run and _step_of(chosen) is not None:
            options.append(str(chosen))
        else:
            st.session_state.pop(key, None)
    if not options:
        return None
    picked = st.selectbox(
        label,
        options,
        index=_first_other(run, split, options, unlike),
        key=key,
        bind="query-params",
        width=210,
        help="The recorded evaluation is what training or `labkit evaluate` wrote. "
        "Any kept checkpoint is evaluated on request.",
    )
    return Source(run, split, _step_of(picked))


def _first_other(run: RunDirectory, split: str, options: list[str], unlike: Source | None) -> int:
    if unlike is None or unlike.run.path != run.path:
        return 0
    recorded = recorded_step(run, split)
    same = {unlike.step, recorded} if unlike.step in (None, recorded) else {unlike.step}
    return next((place for place, name in enumerate(options) if _step_of(name) not in same), 0)


def _step_of(name: object) -> int | None:
    words = str(name).split()
    if len(words) == 2 and words[0] == "step" and words[1].isascii() and words[1].isdecimal():
        return int(words[1]) if len(words[1]) < 16 else None
    return None


@st.cache_resource(max_entries=4, show_spinner="Reading predictions…")
def _loaded(path: Path, split: str, files: tuple[tuple[int, int], ...]) -> Predictions:
    # `files` is part of the cache's key, so that replaced files are read again.
    return load_predictions(RunDirectory(path), split)


def recorded(run: RunDirectory, split: str = "test") -> Predictions:
    """Return what an evaluation recorded. Raises FileNotFoundError, or InputError for damaged files."""
    return _loaded(run.path, split, signature(run, split))


def evaluate_command(run: RunDirectory, split: str) -> str:
    """Return the command that writes the predictions of a split, as a line for a shell."""
    options = "" if split == "test" else f" --split {split}"
    return f"labkit evaluate {shlex.quote(str(run.path))}{options}"


def predictions_of(source: Source | None, run: RunDirectory, split: str) -> Predictions | None:
    """Return the predictions, or draw why there are none or how far the network is, and return None.

    Not for use within a fragment.
    """
    if source is None and recorded_by(run):
        st.info("Another program recorded this run: `run.predictions` in it keeps what this page shows.")
        return None
    if source is None:
        st.info(
            f"This run has no predictions for the {split} split yet, and has kept no checkpoint to ask. "
            "To write them:",
            icon=":material/grid_view:",
        )
        show_command(evaluate_command(run, split))
        return None
    if source.step is not None:
        return _computed(source, source.step)
    try:
        return recorded(run, split)
    except FileNotFoundError:
        st.info("The predictions are gone. To write them again:", icon=":material/grid_view:")
    except InputError as error:
        st.error(f"{plain(str(error))}. To write it again:", icon=":material/broken_image:")
    show_command(evaluate_command(run, split))
    return None


def _computed(source: Source, step: int) -> Predictions | None:
    run, split = source.run, source.split
    gone = step not in run.checkpoint_steps()
    known = known_evaluation(run, split, step)
    if known is not None:
        if gone:
            st.caption(
                f":material/delete: The checkpoint of step {step:,} isn't kept any more. "
                "This was computed before."
            )
        return known
    asked = None if gone else ask_evaluation(run, split, step)
    if asked is None:
        st.warning(f"This run doesn't keep the checkpoint of step {step:,}.", icon=":material/delete:")
        st.caption("Choose another checkpoint above. A run keeps more of them with:")
        show_command(KEEP_SOME)
        return None
    name = f"{run.path}-{split}-{step}"
    return background.shown(asked, f"Evaluating step {step:,} on the {split} split", name)


def forgotten(run: RunDirectory, split: str) -> Forgotten | None:
    """Return how often each image was forgotten, if that was asked for; draw the progress until it is known.

    Not for use within a fragment.
    """
    question: Question | None = st.session_state.get("forgetting-asked")
    if question is None or (question.keys[0].run, question.keys[0].split) != (run.path, split):
        return None
    if question.keys[0].training != changed_at(run.config_path):  # the run was started over
        del st.session_state["forgetting-asked"]
        return None
    asked = ask_forgetting(run, question)
    return background.shown(asked, "Evaluating each kept checkpoint", "forgetting")
