"""What a board of charts draws, decoded from the bytes that the page gets."""

import json
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from streamlit.testing.v1 import AppTest


class Drawn(NamedTuple):
    """A line as it is drawn. ``of``: how many points it stands for. ``marks``: their kind to count and x."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    of: int
    color: str
    marks: dict[str, tuple[int, list[float]]]
    dash: tuple[float, ...]
    style: str


class DrawnChart(NamedTuple):
    """A chart as it is drawn, with its lines by name."""

    title: str
    lines: dict[str, Drawn]
    unit: str
    logarithmic: bool


class Board(NamedTuple):
    """A board as it is drawn. ``seams``: x by label."""

    axis: str
    extent: list[float] | None
    window: list[float] | None
    seams: dict[str, float]
    charts: list[DrawnChart]
    ticks: list[str]


def _opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of the bytes that a component gets, and the numbers behind it."""
    length, zero = struct.unpack_from("<II", data)
    assert zero == 0 and length % 8 == 0
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def decoded(data: bytes) -> Board:
    """Return the board of the bytes that ``app.charts.board.encode`` made."""
    header, rest = _opened(data)
    numbers = np.frombuffer(rest, np.float64)

    def array(place: list[int]) -> NDArray[np.float64]:
        first, count = place
        assert first + count <= len(numbers)
        return numbers[first : first + count]

    def line(one: dict[str, Any]) -> Drawn:
        marks = {mark["kind"]: (mark["count"], array(mark["x"]).tolist()) for mark in one["marks"]}
        x, y = array(one["x"]), array(one["y"])
        return Drawn(x, y, one["of"], one["color"], marks, tuple(one["dash"]), one["style"])

    def chart(one: dict[str, Any]) -> DrawnChart:
        lines = {each["name"]: line(each) for each in one["lines"]}
        return DrawnChart(one["title"], lines, one["unit"], one["logarithmic"])

    seams = {seam["label"]: seam["x"] for seam in header["seams"]}
    drawn = list(map(chart, header["charts"]))
    return Board(header["axis"], header["extent"], header["window"], seams, drawn, header["ticks"])


class Heat(NamedTuple):
    """A heat map as it is drawn. ``values`` [rows, columns]; ``colors`` uint8 [rows, columns, 4]."""

    title: str
    names: list[str]
    columns: list[float]
    values: NDArray[np.float64]
    colors: NDArray[np.uint8]


def decoded_heat(data: bytes) -> Heat:
    """Return the heat map of the bytes that ``app.charts.heat.encode_heat`` made."""
    header, rest = _opened(data)
    shape = (len(header["names"]), len(header["columns"]))
    cells = shape[0] * shape[1]
    values = np.frombuffer(rest, np.float64, cells).reshape(shape)
    colors = np.frombuffer(rest, np.uint8, 4 * cells, 8 * cells).reshape(*shape, 4)
    return Heat(header["title"], header["names"], header["columns"], values, colors)


def parts(at: AppTest, name: str) -> list[Any]:
    """Return what a page gives to its components of a name, from the top."""
    return [part.proto for part in at.get("bidi_component") if part.proto.component_name == name]


def heats(at: AppTest) -> list[Heat]:
    return [decoded_heat(part.bytes) for part in parts(at, "labkit_heat")]


def boards(at: AppTest) -> list[Board]:
    return [decoded(part.bytes) for part in parts(at, "labkit_board")]


def charts(at: AppTest) -> list[DrawnChart]:
    """Return the charts of all boards of a page."""
    return [chart for board in boards(at) for chart in board.charts]
