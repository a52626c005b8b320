"""Predictions: a reader says what will come before a cell measures it, and then sees how far off it was.

``predict("04.a", …)`` asks, ``outcome("04.a", value)`` compares, and ``record()`` ends the lesson with all of
both. They are kept in the lesson's folder, so a restarted kernel still has them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from course.lessons.begin import current_lesson, say
from labkit.errors import InputError
from labkit.figures.widgets import is_interactive
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json
from labkit.tables import markdown_table

FAR_OFF = 0.3  # of a prediction, from which a lesson says why
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def predict(number: str, question: str, choices: Sequence[Any] = (), *, unit: str = "") -> None:
    """Ask for a prediction: in JupyterLab by a click, or by a number and Enter. Elsewhere it only asks.

    What the reader answers is kept at once, and counts until ``outcome`` shows the result.

    Args:
        number: the lesson and a letter, such as ``"04.a"``.
        question: one sentence that ends with a question mark. Its answer must not be on the page yet.
        choices: the answers to choose from; without any, a number is asked for.
        unit: of the number, such as ``"seconds"`` or ``"%"``.

    Raises InputError for a number that isn't of this lesson, and where no lesson has begun.
    """
    predictions = _read(number)
    asked = {"question": question, "choices": [*map(str, choices)], "unit": unit}
    before = predictions.get(number, {})
    # A question whose result was seen without a prediction is asked anew, and so is one that has changed.
    if "predicted" not in before or asked != {name: before[name] for name in asked}:
        _keep({**predictions, number: asked})
    options = " · ".join(asked["choices"]) or f"a number{f' in {unit}' if unit else ''}"
    say(f"**Predict {number}, before you run the next cell:** {question} ({options})")
    if is_interactive():
        from IPython.display import display

        display(_widget(number))


def outcome(number: str, value: Any) -> None:
    """Show what came beside what was predicted, in one line.

    Where nothing was predicted, as on the site, the result is folded behind the question.

    Args:
        number: that of the ``predict`` whose result this is.
        value: a finite number in the unit of the question, or one of its choices.

    Raises InputError for another value, and if ``predict`` hasn't asked.
    """
    predictions = _read(number)
    if number not in predictions:
        raise InputError(f'nothing asked for prediction {number}; run the cell with predict("{number}", …)')
    asked = predictions[number]
    came = (
        _as_number(value) if not asked["choices"] else str(value) if str(value) in asked["choices"] else None
    )
    if came is None:
        allowed = ", ".join(asked["choices"]) or "a finite number"
        raise InputError(f"outcome {number} is {value!r}; allowed: {allowed}")
    asked["came"] = came
    _keep(predictions)
    was = f"it was {_shown(asked, 'came')}"
    if "predicted" in asked:
        say(f"**{number}** You predicted {_shown(asked, 'predicted')}; {was}: {_comparison(asked)}.")
    else:
        summary = escape(asked["question"])
        say(f"<details><summary>{summary}</summary>\n\nNo prediction was given; {was}.\n\n</details>")


def record() -> None:
    """Show all predictions of this lesson, with what came."""
    predictions = _read()
    rows = [("question", "predicted", "came", "your prediction was")]
    for number, asked in sorted(predictions.items()):
        predicted, came = _shown(asked, "predicted"), _shown(asked, "came")
        rows.append((f"{number} {asked['question']}", predicted, came, _comparison(asked)))
    given = sum("predicted" in asked for asked in predictions.values())
    end = f"You predicted {given} of {len(predictions)}. To begin anew, delete `{_path()}`."
    say(f"{markdown_table(rows)}\n\n{end if given else 'No prediction was given.'}")


def compared(rows: Mapping[str, tuple[float, float, str]]) -> None:
    """Show what a model predicted beside what was measured, with the error of each prediction.

    Args:
        rows: by what it is: the prediction, the measured value, and the unit of both.
    """
    cells, far = [("", "predicted", "measured", "prediction off by")], []
    for name, (predicted, came, unit) in rows.items():
        off = predicted / came - 1 if came else math.inf
        cells.append((name, f"{predicted:.3g} {unit}", f"{came:.3g} {unit}", f"{off:+.0%}"))
        if abs(off) > FAR_OFF:
            far.append(name)
    say(f"{markdown_table(cells)}\n\nOff by more than {FAR_OFF:.0%}: {'; '.join(far) or 'none'}.")


def parse_number(text: str, unit: str = "") -> float | None:
    """Return the number that a reader typed, with or without its unit; None if it isn't a finite one."""
    return _as_number(THOUSANDS.sub("", text.strip().removesuffix(unit).strip()))


def _as_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _widget(number: str) -> Any:
    """Return what takes an answer, with a place for what is said about it."""
    import ipywidgets

    asked = _read(number)[number]
    control: Any
    if asked["choices"]:
        control = ipywidgets.RadioButtons(options=asked["choices"], value=asked.get("predicted"))
        control.layout.width = "max-content"
    else:
        before = f"{asked['predicted']:g}" if "predicted" in asked else ""
        control = ipywidgets.Text(before, placeholder="a number, then Enter", continuous_update=False)
    said = ipywidgets.HTML(escape(asked["unit"]))
    keep = ipywidgets.Button(description="Keep")  # the field is read when it loses the focus

    def answered(change: Any) -> None:
        said.value = escape(_answer(number, change["new"]))
        keep.focus()  # in the field, Shift+Enter would run no cell

    control.observe(answered, names="value")
    shown = [control, said] if asked["choices"] else [control, keep, said]
    return ipywidgets.HBox(shown, layout=ipywidgets.Layout(flex_flow="row wrap"))


def _answer(number: str, given: str) -> str:
    """Keep a reader's answer. Returns a sentence about it."""
    predictions = _read(number)
    asked = predictions[number]
    if "came" in asked:
        return "The result has been shown already, so this is not kept."
    predicted = given if asked["choices"] else parse_number(given, asked["unit"])
    if predicted is None:
        return f"{given!r} is not a number; write one such as 1200 or 0.5."
    asked["predicted"] = predicted
    _keep(predictions)
    return f"Kept: {_shown(asked, 'predicted')}. Now run the next cell."


def _comparison(asked: dict[str, Any]) -> str:
    """Return how far a prediction is from what came; a dash where one of them is missing."""
    if not {"predicted", "came"} <= asked.keys():
        return "–"
    predicted, came = asked["predicted"], asked["came"]
    if predicted == came:
        return "right"
    if asked["choices"]:
        return "not right"
    if predicted * came > 0:
        return f"{_number(predicted / came)} × the result"
    return f"off by {_number(abs(predicted - came))}"


def _shown(asked: dict[str, Any], key: str) -> str:
    """Return what was predicted, or what came, with its unit; a dash where it is missing."""
    if key not in asked:
        return "–"
    value = asked[key]
    return f"{value if asked['choices'] else _number(value)} {asked['unit']}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _path() -> Path:
    return current_lesson().folder / "predictions.json"


def _read(number: str | None = None) -> dict[str, Any]:
    """Return what is kept, by number. Raises InputError for a number that isn't of this lesson."""
    lesson = current_lesson().name
    if number is not None and not re.fullmatch(rf"{lesson[:2]}\.[a-z]", number):
        raise InputError(f"prediction {number!r} is not of lesson {lesson}; allowed: {lesson[:2]}.a to .z")
    return read_json(_path()) if _path().exists() else {}


def _keep(predictions: dict[str, Any]) -> None:
    write_json_atomic(_path(), predictions)
