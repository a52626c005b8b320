"""Wrong answers to the exercises of lesson 01, with words of the hint that each has to get."""

import struct

import numpy as np

from course.lessons.data.records import masked_crc


def unchecked(data):
    found, position = [], 0
    while position < len(data):
        [length] = struct.unpack_from("<Q", data, position)
        found.append(data[position + 12 : position + 12 + length])
        position += length + 16
    return found


def payload_checked(data):
    found, position = unchecked(data), 0
    for payload in found:
        position += 16 + len(payload)
        if struct.unpack_from("<I", data, position - 4)[0] != masked_crc(payload):
            raise ValueError("damaged")
    return found


def with_checksum(data):
    return [payload + b"\0\0\0\0" for payload in unchecked(data)]


def one_byte_of_length(data):
    found, position = [], 0
    while position < len(data):
        length = data[position]
        found.append(data[position + 12 : position + 12 + length])
        position += length + 16
    return found


def shared_generator(count, seed, epoch):
    np.random.seed(1000 * seed + epoch)
    return np.random.permutation(count)


def rotated(count, seed, epoch):
    return np.roll(np.arange(count), 7 * seed * seed + epoch)


def drawn_with_replacement(count, seed, epoch):
    return np.random.default_rng((seed, epoch)).integers(0, count, count)


def generator(*key):
    return np.random.default_rng(key)


def total(stages, overlapped):
    return sum(seconds for seconds, _ in stages)


def slowest(stages, overlapped):
    return max(seconds for seconds, _ in stages) if overlapped else total(stages, False)


def divided(stages, overlapped):
    shares = [seconds / copies for seconds, copies in stages]
    return max(shares) if overlapped else sum(shares)


WRONG = {
    "01.1": [
        (unchecked, "checksum of the payload does not fit"),
        (payload_checked, "checksum of the length does not fit"),
        (with_checksum, "comes with bytes around it"),
        (one_byte_of_length, "the length has 8 bytes"),
        (lambda data: data, "expected a list of bytes"),
    ],
    "01.3": [
        (lambda n, seed, epoch: np.random.default_rng().permutation(n), "two calls with the same seed"),
        (shared_generator, "shares; make one of its own"),
        (lambda n, seed, epoch: generator(seed).permutation(n), "the epoch has to count"),
        (lambda n, seed, epoch: generator(epoch).permutation(n), "the seed has to count"),
        (lambda n, seed, epoch: generator(seed + epoch).permutation(n), "as a pair"),
        (drawn_with_replacement, "leaves out"),
        (rotated, "neighbours stay neighbours"),
    ],
    "01.4": [
        (lambda examples, batch: examples, "not the smallest"),
        (lambda examples, batch: batch, "the newest example that can be in the first batch"),
        (lambda examples, batch: max(examples - batch + 2, 1), "count the draws again"),
        (lambda examples, batch: examples / 2 + 0.25, "a whole number of examples"),
        (lambda examples, batch: examples - batch + 1, "fewer examples than a batch"),
    ],
    "01.2": [
        (total, "their times don't add up"),
        (slowest, "divide by the copies"),
        (divided, "copies stand idle"),
        (
            lambda stages, overlapped: 2 * divided(stages, True) if overlapped else total(stages, False),
            "s a batch",
        ),
    ],
}
