"""Shards of a checkpoint: files in the safetensors format, with a digest of the header in the name.

    shard-00001-of-00004-<first 16 hexadecimal digits of the header's SHA-256>.safetensors
    8 bytes: length of the header · header: JSON with type, shape and offsets of each tensor; its metadata has the
    SHA-256 of all following bytes, and the writer's own metadata · the tensors' bytes

Any safetensors library reads them. A truncated or modified file is rejected with an error. A file cannot run code,
name another file, or take more memory than its length.

Files are written completely under another name, synced, then renamed. A crash leaves the old or the new file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.elastic.checkpoint.values import Tensor

NAME = re.compile(r"shard-(?P<number>\d{5})-of-(?P<count>\d{5})-(?P<digest>[0-9a-f]{16})\.safetensors")
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_LENGTH_BYTES = 8
_CHUNK_BYTES = 1 << 24


class Damaged(ValueError):
    """Error for a checkpoint file that differs from what was written; the message has the file and the reason."""


@dataclass(frozen=True)
class Shard:
    """Content of one file."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def write(folder: Path, number: int, count: int, shard: Shard) -> Path:
    """Write one of ``count`` shards into a folder, atomically; return the file.

    Raises
    ------
    OSError
        For example, the disk is full.
    """
    header = _header(shard)
    start = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    path = folder / f"shard-{number:05}-of-{count:05}-{_short(start)}.safetensors"
    chunks = (
        chunk
        for tensor in shard.tensors.values()
        for begin in range(0, tensor.data.nbytes, _CHUNK_BYTES)
        for chunk in [tensor.data[begin : begin + _CHUNK_BYTES]]
    )
    write_file(path, (chunk for part in ([start], chunks) for chunk in part))
    return path


def _header(shard: Shard) -> bytes:
    entries: dict[str, Any] = {}
    digest, at = hashlib.sha256(), 0
    for name, tensor in shard.tensors.items():
        end = at + tensor.data.nbytes
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        digest.update(tensor.data)
        at = end
    metadata = {"sha256": digest.hexdigest(), "hvd_kernel": json.dumps(shard.metadata)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    return text + b" " * (-len(text) % _LENGTH_BYTES)  # aligns the tensors, as the format requires


def read(path: Path) -> Shard:
    """Read a shard, and verify all of it.

    Raises
    ------
    Damaged
        The file differs from what was written.
    """
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None


def _read(path: Path) -> Shard:
    matched = NAME.fullmatch(path.name)
    if matched is None:
        raise ValueError("its name is not that of a shard")
    whole = _whole(path)
    length = int.from_bytes(whole[:_LENGTH_BYTES].tobytes(), "little")
    if len(whole) < _LENGTH_BYTES or length > len(whole) - _LENGTH_BYTES:
        raise ValueError(f"its header would be {length} bytes long, and the file has {len(whole)}: it is cut off")
    start, data = whole[: _LENGTH_BYTES + length], whole[_LENGTH_BYTES + length :]
    if _short(start) != matched["digest"]:
        raise ValueError("its header is not the one that was written")
    header = json.loads(start[_LENGTH_BYTES:].tobytes())
    metadata = header.pop("__metadata__")
    if hashlib.sha256(data).hexdigest() != metadata["sha256"]:
        raise ValueError(f"its {len(data)} bytes of tensors are not those that were written")
    return Shard(dict(json.loads(metadata["hvd_kernel"])), _tensors(header, data))


def _tensors(header: Mapping[str, Any], data: memoryview) -> dict[str, Tensor]:
    tensors = {}
    for name, entry in header.items():
        dtype, (begin, end), shape = _DTYPES[entry["dtype"]], entry["data_offsets"], entry["shape"]
        if not isinstance(shape, list):
            raise TypeError(f"{name} has the shape {shape!r}")
        tensor = Tensor(dtype, tuple(map(int, shape)), data[begin:end])
        if min(begin, *tensor.shape, 0) < 0 or not tensor.bytes_needed == tensor.data.nbytes == end - begin:
            raise ValueError(f"{name} would be {list(tensor.shape)} of {dtype} in {end - begin} bytes")
        tensors[name] = tensor
    return tensors


def _whole(path: Path) -> memoryview:
    """Return the bytes of a regular file; links are not followed, and pipes do not block."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb", buffering=0) as stream:
        whole = memoryview(bytearray(os.fstat(file).st_size))
        at = 0
        while at < len(whole) and (count := stream.readinto(whole[at:])):
            at += count
    return whole[:at]


def _short(start: memoryview | bytes) -> str:
    return hashlib.sha256(start).hexdigest()[:16]


# Atomic files. A rename is durable only when the folder is synced too: first the file, then the folder.


_UNFINISHED = ".unfinished-"


def make_folder(path: Path) -> None:
    """Create a folder, which may exist, and make its name durable."""
    with contextlib.suppress(FileExistsError):  # another rank was first
        os.mkdir(path)  # noqa: PTH102 - one system call
    sync_folder(path.parent)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically; an error leaves no file.

    Raises
    ------
    OSError
        For example, the disk is full; the error names the file.
    """
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            for chunk in chunks:
                _write_all(file, memoryview(chunk))
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(unfinished, path)  # noqa: PTH104 - one system call
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)  # noqa: PTH108 - one system call
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_folder(path: Path) -> None:
    """Remove a folder of files, ignoring errors: another rank may do the same."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):  # noqa: PTH208 - one system call
            os.unlink(path / name)  # noqa: PTH108 - one system call
        os.rmdir(path)  # noqa: PTH106 - one system call
