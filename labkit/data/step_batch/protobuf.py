"""Parse ``tf.train.Example``, a protocol buffer (https://protobuf.dev/programming-guides/encoding)."""

__all__ = ["features_of", "fields_of", "integer_at", "integers_of"]


def features_of(example: bytes) -> dict[str, bytes]:
    """Return the content of each feature's list by its name: raw bytes, or packed integers."""
    [features] = fields_of(example)
    found = {}
    for entry in fields_of(features):
        name, feature = fields_of(entry)
        [values] = fields_of(feature)
        [found[name.decode()]] = fields_of(values)
    return found


def fields_of(message: bytes) -> list[bytes]:
    """Return the content of a message's fields, which all have a length (wire type 2)."""
    fields, position = [], 0
    while position < len(message):
        length, position = integer_at(message, position + 1)
        fields.append(message[position : position + length])
        position += length
    return fields


def integers_of(packed: bytes) -> list[int]:
    """Return the integers of a packed list."""
    values, position = [], 0
    while position < len(packed):
        value, position = integer_at(packed, position)
        values.append(value)
    return values


def integer_at(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned integer at a position (7 bits a byte, lowest first), and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
