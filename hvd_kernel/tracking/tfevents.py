"""TensorBoard's event files of scalars, as bytes: records of TensorFlow that hold messages of protobuf. Pure.

Terms.
  record    length (uint64), its checksum, message, its checksum; little-endian; checksum: crc32c, masked (uint32)
  message   Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 Summary of Values: 1 tag, 2 float
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_WORD = 0xFFFFFFFF
VERSION = "brain.Event:2"
_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_ONE_VALUE, _TAG, _VALUE = 1, 1, 2
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # how a field's bytes are laid
_LOW = 0x7F  # of a varint's bytes all but the last have the bit above set


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


class Scalar(NamedTuple):
    """One value as it stands in a file."""

    time: float
    step: int
    tag: str
    value: float


class DamagedFileError(ValueError):
    """A checksum is wrong."""


def crc32c(data: bytes) -> int:
    """Return Castagnoli's checksum."""
    crc = _WORD
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _WORD


def masked(data: bytes) -> int:
    """Return the checksum as a record has it: the checksum of data that holds checksums would be weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD


def record(message: bytes) -> bytes:
    """Frame a message."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked(length)) + message + struct.pack("<I", masked(message))


def version_event(time: float) -> bytes:
    """Return the record that every file begins with."""
    return record(_double(_TIME, time) + _bytes(_FILE_VERSION, VERSION.encode()))


def scalar_event(scalar: Scalar) -> bytes:
    """Return the record of one value."""
    value = _bytes(_TAG, scalar.tag.encode()) + _key(_VALUE, _FOUR) + struct.pack("<f", _float32(scalar.value))
    return record(
        _double(_TIME, scalar.time) + _integer(_STEP, scalar.step) + _bytes(_SUMMARY, _bytes(_ONE_VALUE, value))
    )


def scalars(data: bytes) -> Iterator[Scalar]:
    """Read the values of a file back; a record that is not whole yet ends it.

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
    at = 0
    while at + 12 <= len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        end = at + 12 + length
        if crc != masked(data[at : at + 8]):
            raise DamagedFileError(f"the checksum of the length at byte {at} is wrong")
        if end + 4 > len(data):
            return
        message = data[at + 12 : end]
        if struct.unpack_from("<I", data, end)[0] != masked(message):
            raise DamagedFileError(f"the checksum of the record at byte {at} is wrong")
        yield message
        at = end + 4


# Protobuf: a key is a field's number, and how its bytes are laid.


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


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & _LOW) << shift
        at, shift = at + 1, shift + 7
        if byte <= _LOW:
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _float32(value: float) -> float:
    """Return the value, infinite where a float32 cannot hold it: ``struct`` would refuse."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == _VARINT:
            end = _varint(message, at)[1]
        elif key & 7 == _SIZED:
            length, at = _varint(message, at)
            end = at + length
        else:
            end = at + (8 if key & 7 == _EIGHT else 4)
        yield key >> 3, message[at:end]
        at = end
