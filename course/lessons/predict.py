"""Predictions: a reader says what will come before a cell measures it, and then sees how far off it was.

``predict("04.a", …)`` asks, ``outcome("04.a", value)`` compares, and ``record()`` ends the lesson with all of
both. They are kept in ``predictions.json`` in the lesson's folder, so a restarted kernel still has them.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from course.lessons.begin import current_lesson
from labkit.errors import InputError
from labkit.figures.widgets import show
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json
from labkit.tables import html_table, text_table

NUMBER = re.compile(r"\d\d\.[a-z]")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
STYLE = "padding:.5em 1em;border-left:5px solid #0072b2;background:#eef5fb;color:#1f2328"
NONE_GIVEN = "no prediction was given"


@dataclass(frozen=True)
class Shown:
    """What a cell shows, as text and as HTML."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def predict(number: str, question: str, choices: Sequence[Any] | None = None, *, unit: str = "") -> None:
    """Ask for a prediction. In JupyterLab it is a click or a number and Enter; elsewhere only the question.

    What the reader answers is kept at once, and counts until ``outcome`` shows the result.

    Args:
        number: the lesson and a letter, such as ``"04.a"``.
        question: one sentence that ends with a question mark. Its answer must not be on the page yet.
        choices: the answers to choose from; None asks for a number.
        unit: of the number, such as ``"seconds"`` or ``"%"``.

    Raises InputError for a number that isn't of this lesson, and where no lesson has begun.
    """
    predictions = _read(number)
    asked = {"question": question, "choices": list(map(str, choices or ())), "unit": unit}
    before = predictions.get(number, {})
    # A question whose result was seen without a prediction is asked anew, and so is one that has changed.
    if before.get("predicted") is None or any(before.get(key) != value for key, value in asked.items()):
        _keep({**predictions, number: asked})
    options = " · ".join(asked["choices"]) or f"a number{f' in {unit}' if unit else ''}"
    title = f"Predict {number}, before you run the next cell"
    shown = Shown(f"{title}: {question} ({options})", _box(f"<b>{title}</b><br>{escape(question)}", options))
    show(shown, lambda: _widget(number))


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
    result = (str(value) if str(value) in asked["choices"] else None) if asked["choices"] else _finite(value)
    if result is None:
        allowed = ", ".join(asked["choices"]) or "a finite number"
        raise InputError(f"outcome {number} is {value!r}; allowed: {allowed}")
    asked["came"] = result
    _keep(predictions)
    came = _with_unit(asked, "came")
    if asked.get("predicted") is None:
        answer = f"It was {came}; {NONE_GIVEN}."
        html = f"<details><summary>{escape(asked['question'])}</summary>{escape(answer)}</details>"
        _display(Shown(f"{number}: {answer}", html))
    else:
        text = f"you predicted {_with_unit(asked, 'predicted')}; it was {came}: {_comparison(asked)}"
        _display(Shown(f"{number}: {text}", _box(f"<b>{number}</b> {escape(text)}")))


def record() -> None:
    """Show all predictions of this lesson, with what came."""
    predictions = _read()
    rows = [
        (
            f"{number} {asked['question']}",
            _with_unit(asked, "predicted"),
            _with_unit(asked, "came"),
            _comparison(asked),
        )
        for number, asked in sorted(predictions.items())
    ]
    given = sum(asked.get("predicted") is not None for asked in predictions.values())
    said = NONE_GIVEN
    if given:
        said = f"{given} of {len(rows)} questions were predicted; delete {_path()} to predict anew"
    header = ("question", "predicted", "came", "your prediction was")
    _display(Shown(f"{text_table([header, *rows])}\n{said}", html_table(header, rows, caption=said)))


def parse_number(text: str, unit: str = "") -> float | None:
    """Return the number that a reader typed, with or without its unit; None if it isn't a finite one."""
    return _finite(THOUSANDS.sub("", text.strip().removesuffix(unit).strip()))


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _widget(number: str) -> Any:
    import ipywidgets

    asked = _read(number)[number]
    before = asked.get("predicted")
    said = ipywidgets.HTML()
    control: Any
    if asked["choices"]:
        control = ipywidgets.RadioButtons(options=asked["choices"], value=before)
        control.layout.width = "max-content"
    else:
        control = ipywidgets.Text(
            "" if before is None else _shown(before),
            placeholder="a number, then Enter",
            continuous_update=False,
        )
        if asked["unit"]:
            said.value = escape(asked["unit"])

    def answered(change: Any) -> None:
        said.value = escape(_answer(number, change["new"]))

    control.observe(answered, names="value")
    return ipywidgets.HBox([control, said], layout=ipywidgets.Layout(flex_flow="row wrap"))


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
    return f"Kept: {_with_unit(asked, 'predicted')}. Now run the next cell."


def _comparison(asked: dict[str, Any]) -> str:
    """Return how far a prediction is from what came; a dash where one of them is missing."""
    predicted, came = asked.get("predicted"), asked.get("came")
    if predicted is None or came is None:
        return "–"
    if asked["choices"]:
        return "right" if predicted == came else "not right"
    if predicted == came:
        return "exact"
    if predicted * came > 0:
        return f"{_shown(predicted / came)} × the result"
    return f"off by {_shown(abs(predicted - came))}"


def _with_unit(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    text = "–" if value is None else value if isinstance(value, str) else _shown(value)
    return f"{text} {asked['unit']}" if asked["unit"] and value is not None else text


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _box(*lines: str) -> str:
    """Return the lines in a box; the first may have tags."""
    first, *others = lines
    return f"<div style='{STYLE}'>{'<br>'.join([first, *map(escape, others)])}</div>"


def _display(shown: Shown) -> None:
    from IPython.display import display

    display(shown)


def _path() -> Path:
    return current_lesson().folder / "predictions.json"


def _read(number: str | None = None) -> dict[str, Any]:
    """Return what is kept, by number. Raises InputError for a number that isn't of this lesson."""
    lesson = current_lesson().name
    if number is not None and not (NUMBER.fullmatch(number) and number[:2] == lesson[:2]):
        raise InputError(f"prediction {number!r} is not of lesson {lesson}; allowed: {lesson[:2]}.a to .z")
    path = _path()
    return read_json(path) if path.exists() else {}


def _keep(predictions: dict[str, Any]) -> None:
    write_json_atomic(_path(), predictions)
