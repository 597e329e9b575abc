"""Python values between notebook and ranks: pickle protocol 5, with large arrays as out-of-band buffers.

Shared by controller side and rank side. Both ends are the same user's processes behind the cluster's encrypted, keyed
channels; nothing is unpickled before. Tensors are sent as plain CPU memory without autograd history, so that a
notebook without a GPU can read the tensors of a rank with one. This module finds torch by name instead of importing
its adapter, because the adapter imports the core, which a notebook's process never does.

Terms.
  parts          a pickle and its out-of-band buffers
  shared buffer  memory without a name (memfd) that passes large parts to another process of the same host and user,
                 which opens it through /proc. On the wire they would be encrypted, and copied by the controller, twice
  address        where a shared buffer is, and the secret at its head that proves to its reader that it is this buffer
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hvd_kernel.protocol import modules

LARGE_BYTES = 1 << 20
"""Smaller parts stay on the wire."""

_PAGE = mmap.ALLOCATIONGRANULARITY
_WRITE_BYTES = 1 << 30
_SECRET_BYTES = 32
_NAME = "hvd-buffer"
_ALIASES = {"torch.bfloat16": "int16"}  # of dtypes that NumPy lacks

Address = Mapping[str, Any]
Placed = list[list[int]]
"""[number of the part, its bytes] for each part in a shared buffer, in order."""


def pack(value: Any) -> list[Any]:
    """Return the parts of a value; all of them support the buffer protocol."""
    from hvd_kernel.protocol.main_objects import MainPickler  # noqa: PLC0415 - only when values travel

    class Pickler(MainPickler):
        def reducer_override(self, obj: Any) -> Any:
            torch = modules.loaded("torch")
            is_tensor = torch is not None and isinstance(obj, torch.Tensor)
            reduced = _reduce_tensor(torch, obj) if is_tensor else NotImplemented
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    parts: list[Any] = []
    head = io.BytesIO()
    Pickler(head, protocol=5, buffer_callback=lambda part: parts.append(part.raw())).dump(value)
    return [head.getvalue(), *parts]


def pack_variables(values: Mapping[str, Any]) -> list[Any]:
    """Return the parts of variables, as ``pack`` of a dict.

    Raises
    ------
    TypeError
        A value cannot be pickled; the message has the name of its variable, its type and the reason.
    """
    try:
        return pack(dict(values))
    except Exception:
        for name, value in values.items():
            try:
                pack(value)
            except Exception as error:
                raise TypeError(f"`{name}` ({type(value).__name__}) cannot be sent: {error}") from error
        raise


def unpack(parts: Sequence[Any]) -> Any:
    """Return the value of ``pack``; arrays own writable memory."""
    head, *rest = parts
    return pickle.loads(memoryview(head), buffers=[part if _writable(part) else bytearray(part) for part in rest])  # noqa: S301


def size(parts: Iterable[Any]) -> int:
    """Return the bytes of all parts."""
    return sum(memoryview(part).nbytes for part in parts)


@contextmanager
def shared_buffer() -> Iterator[tuple[int, Address]]:
    """Create a shared buffer and yield its descriptor and address; existing mappings outlive the descriptor."""
    descriptor, secret = os.memfd_create(_NAME), secrets.token_bytes(_SECRET_BYTES)
    try:
        os.pwrite(descriptor, secret, 0)
        yield descriptor, {"pid": os.getpid(), "descriptor": descriptor, "secret": secret.hex()}
    finally:
        os.close(descriptor)


@contextmanager
def reached(address: Address | None) -> Iterator[int | None]:
    """Open another process's shared buffer; None without an address, or if it is not on this host."""
    descriptor = _reach(address) if address else None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def put(parts: Sequence[Any], descriptor: int | None) -> tuple[list[Any], Placed]:
    """Write the large parts into a shared buffer; return the parts for the wire, and a list of the written ones."""
    if descriptor is None:
        return list(parts), []
    wire, placed, place = [], [], _PAGE
    for number, part in enumerate(parts):
        view = memoryview(part).cast("B")
        if len(view) < LARGE_BYTES:
            wire.append(part)
            continue
        for start in range(0, len(view), _WRITE_BYTES):
            _write(descriptor, view[start : start + _WRITE_BYTES], place + start)
        placed.append([number, len(view)])
        place += _whole_pages(len(view))
    return wire, placed


def collect(wire: Sequence[Any], placed: Placed, descriptor: int | None) -> list[Any]:
    """Return all parts; each one in a shared buffer gets a mapping of its own, copy-on-write."""
    parts = [memoryview(part) for part in wire]
    place = _PAGE
    for number, length in placed:
        assert descriptor is not None
        flags, protection = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        parts.insert(number, memoryview(mmap.mmap(descriptor, length, flags, protection, offset=place)))
        place += _whole_pages(length)
    return parts


def _reach(address: Address) -> int | None:
    path = f"/proc/{address['pid']}/fd/{address['descriptor']}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):  # noqa: PTH115 - a link that leads to no file
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.pread(descriptor, _SECRET_BYTES, 0).hex() == address["secret"]:
        return descriptor
    os.close(descriptor)
    return None


def _write(descriptor: int, view: memoryview, place: int) -> None:
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


def _whole_pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _writable(part: Any) -> bool:
    return isinstance(part, memoryview) and isinstance(part.obj, mmap.mmap)


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or type(tensor) not in {torch.Tensor, torch.nn.Parameter}
    ):
        return NotImplemented
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter, (tensor.detach(), tensor.requires_grad)
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    alias = _ALIASES.get(str(plain.dtype), "")
    try:
        array = plain.view(getattr(torch, alias)).numpy() if alias else plain.numpy()
    except TypeError:  # a dtype that NumPy lacks
        return NotImplemented
    return _tensor, (array, str(plain.dtype).removeprefix("torch."), tensor.requires_grad and tensor.is_leaf)


def _tensor(array: Any, dtype: str, requires_grad: bool) -> Any:
    torch = importlib.import_module("torch")
    tensor = torch.from_numpy(array).view(getattr(torch, dtype))
    return tensor.requires_grad_() if requires_grad else tensor
