"""TFRecord files as bytes: how a record is framed, and the figure of a record."""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.data.tfrecord import masked_checksums
from labkit.figures.style import GREY, TRAIN, VALIDATION, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BYTES_IN_A_ROW = 16
ROWS_SHOWN = 6  # of the beginning of a record


class Field(NamedTuple):
    """A part of a record: its name, and its bytes from ``start`` to ``end`` - 1 of the file."""

    name: str
    start: int
    end: int


def masked_crc(data: bytes) -> int:
    """Return the checksum that a TFRecord file stores for ``data``: CRC-32C, rotated and shifted."""
    return masked_checksums([data])[0]


def record_fields(data: bytes, position: int = 0) -> list[Field]:
    """Return the four fields of the record that begins at ``position`` of a TFRecord file.

    Raises ValueError if the file ends before the record does.
    """
    if position + 12 > len(data):
        raise ValueError(f"no record begins at byte {position} of {len(data)}")
    length = int.from_bytes(data[position : position + 8], "little")
    ends = [position, position + 8, position + 12, position + 12 + length, position + 16 + length]
    if ends[-1] > len(data):
        raise ValueError(f"the record at byte {position} ends at byte {ends[-1]}, the file at {len(data)}")
    names = ("length", "checksum of the length", "payload", "checksum of the payload")
    return [Field(name, start, end) for name, start, end in zip(names, ends[:-1], ends[1:], strict=True)]


def tfrecord(payloads: Sequence[bytes]) -> bytes:
    """Return the bytes of a TFRecord file with these payloads."""
    parts = [part for payload in payloads for part in (struct.pack("<Q", len(payload)), payload)]
    return b"".join(part + struct.pack("<I", masked_crc(part)) for part in parts)


def draw_record(data: bytes) -> "Figure":
    """Draw the first bytes of a TFRecord file, and those around the end of its first record.

    Args:
        data: a file with at least two records.
    """
    fields = record_fields(data)
    second = record_fields(data, fields[-1].end)
    last = (fields[-1].start // BYTES_IN_A_ROW - 1) * BYTES_IN_A_ROW
    rows = [row * BYTES_IN_A_ROW for row in range(ROWS_SHOWN)]
    rows += [last + row * BYTES_IN_A_ROW for row in range(3)]
    colors = dict(zip((field.name for field in fields), (TRAIN, VALIDATION, GREY, VALIDATION), strict=True))
    with drawing(9.5, 3.4, "Bytes of a TFRecord: length, checksum, payload, checksum, next record") as figure:
        axis = figure.subplots()
        for line, first in enumerate(rows):
            y = -line - (0.8 if first >= last else 0)
            axis.text(-0.9, y, f"{first:5d}", ha="right", va="center", color=GREY, family="monospace")
            for column, byte in enumerate(data[first : first + BYTES_IN_A_ROW]):
                name = _name_at([*fields, *second], first + column)
                style: Any = {"ha": "center", "va": "center", "color": colors[name], "family": "monospace"}
                weight = "normal" if name == "payload" else "bold"
                axis.text(column, y, f"{byte:02x}", fontweight=weight, **style)
                axis.text(17.5 + column * 0.55, y, chr(byte) if 32 <= byte < 127 else "·", **style)
        axis.text(7.5, -ROWS_SHOWN + 0.1, "⋮", ha="center", va="center", color=GREY)
        for place, (name, color) in enumerate(list(colors.items())[:3]):
            label = name if place != 1 else "checksums"
            axis.text(place * 5, 1.1, f"■ {label}", color=color, va="center")
        axis.text(17.3, 1.1, "the same bytes as text", color=GREY, va="center")
        axis.set(xlim=(-3.2, 26.5), ylim=(-len(rows) - 0.6, 1.7), xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure


def _name_at(fields: Sequence[Field], position: int) -> str:
    return next((field.name for field in fields if field.start <= position < field.end), "payload")
