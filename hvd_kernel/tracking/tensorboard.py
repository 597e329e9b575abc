"""TensorBoard: an event file of scalars in a separate folder for each run, without a dependency.

``tensorboard --logdir runs`` shows the runs. The format has no files and notes; other sinks store them.

Terms.
  record    length (uint64), its checksum, message, its checksum; little-endian; checksum: crc32c, masked (uint32)
  message   Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 Summary of Values: 1 tag, 2 float
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hvd_kernel.tracking.sink import Item, Point, Run, Steps, moment

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_WORD = 0xFFFFFFFF
VERSION = "brain.Event:2"
_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_ONE_VALUE, _TAG, _VALUE = 1, 1, 2
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # wire types of protobuf
_LOW = 0x7F  # in a varint, the high bit is set in all bytes but the last


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


class Scalar(NamedTuple):
    """A value in an event file."""

    time: float
    step: int
    tag: str
    value: float


class DamagedFileError(ValueError):
    """A checksum is wrong."""


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum."""
    crc = _WORD
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _WORD


def masked(data: bytes) -> int:
    """Return the masked checksum of a record; a plain CRC of data that contains CRCs would be weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD


def record(message: bytes) -> bytes:
    """Frame a message."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked(length)) + message + struct.pack("<I", masked(message))


def version_event(time: float) -> bytes:
    """Return the first record of every file."""
    return record(_double(_TIME, time) + _bytes(_FILE_VERSION, VERSION.encode()))


def scalar_event(scalar: Scalar) -> bytes:
    """Return the record of one value."""
    value = _bytes(_TAG, scalar.tag.encode()) + _key(_VALUE, _FOUR) + struct.pack("<f", _float32(scalar.value))
    return record(
        _double(_TIME, scalar.time) + _integer(_STEP, scalar.step) + _bytes(_SUMMARY, _bytes(_ONE_VALUE, value))
    )


def scalars(data: bytes) -> Iterator[Scalar]:
    """Yield the values of a file, up to a record that is not complete yet.

    Raises
    ------
    DamagedFileError
        A checksum is wrong.
    """
    for message in _messages(data):
        event = dict(_fields(message))
        for _, summary in _fields(event.get(_SUMMARY, b"")):
            value = dict(_fields(summary))
            if {_TAG, _VALUE} <= value.keys():
                step = _signed(_varint(event.get(_STEP, bytes(1)), 0)[0])
                time = struct.unpack("<d", event[_TIME])[0]
                yield Scalar(time, step, value[_TAG].decode(), struct.unpack("<f", value[_VALUE])[0])


def _messages(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + 12 <= len(data):
        length, crc = struct.unpack_from("<QI", data, position)
        end = position + 12 + length
        if crc != masked(data[position : position + 8]):
            raise DamagedFileError(f"the checksum of the length at byte {position} is wrong")
        if end + 4 > len(data):
            return
        message = data[position + 12 : end]
        if struct.unpack_from("<I", data, end)[0] != masked(message):
            raise DamagedFileError(f"the checksum of the record at byte {position} is wrong")
        yield message
        position = end + 4


# Protobuf: a key is the number of a field and its wire type.


def _key(number: int, wire: int) -> bytes:
    return bytes([number << 3 | wire])


def _double(number: int, value: float) -> bytes:
    return _key(number, _EIGHT) + struct.pack("<d", value)


def _integer(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _as_varint(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _SIZED) + _as_varint(len(value)) + value


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > _LOW:
        out.append(value & _LOW | 0x80)
        value >>= 7
    return bytes([*out, value])


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & _LOW) << shift
        position, shift = position + 1, shift + 7
        if byte <= _LOW:
            return value, position


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _float32(value: float) -> float:
    """Return the value, or infinity if it overflows float32, for which ``struct.pack`` raises an error."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        if key & 7 == _VARINT:
            end = _varint(message, position)[1]
        elif key & 7 == _SIZED:
            length, position = _varint(message, position)
            end = position + length
        else:
            end = position + (8 if key & 7 == _EIGHT else 4)
        yield key >> 3, message[position:end]
        position = end


PATTERN = "events.out.tfevents.*"


class TensorBoard:
    """Sink that writes an event file."""

    def __init__(self, place: str, run: Run) -> None:
        root = Path(place).expanduser()
        existing = sorted(root.glob(f"*_{run.name}"))  # another process of this run has created it
        folder = existing[-1] if existing else root / f"{moment(run.started):%Y%m%d-%H%M%S}_{run.name}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{run.started:.0f}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("ab", buffering=0)
        self._file.write(version_event(run.started))
        self._steps = Steps()

    def log(self, point: Point) -> None:
        """Write a record per value."""
        records = (
            scalar_event(Scalar(point.time, self._steps.of(name, point.step), name, value))
            for name, value in point.values.items()
        )
        self._file.write(b"".join(records))

    def keep(self, item: Item) -> None:
        """Ignore the file: the format stores scalars only."""

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Ignore the notes: the format stores scalars only."""

    def end(self, status: str) -> None:  # noqa: ARG002 - of the Protocol
        """Close the file."""
        self._file.close()
