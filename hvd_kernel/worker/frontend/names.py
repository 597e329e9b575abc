"""The names that are ready in every cell: ``rank``, ``size``, ``local_rank``, ``hvd`` and ``device``.

``hvd`` is Horovod's API for torch; where torch is not installed, that for NumPy's arrays. torch takes longer to import
than all else that a rank needs. Where it would find no GPU, a rank is ready without it: a thread imports it beside
(``ahead``), and the first cell that mentions it waits for that.

Words.
  placeholder  what ``hvd`` and ``device`` are until then; no cell that mentions them sees it
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from hvd_kernel import _session, parcel
from hvd_kernel.worker import devices
from hvd_kernel.worker.frontend.ahead import Ahead

_TORCH, _NUMPY = "hvd_kernel.torch", "hvd_kernel.numpy"
_MENTIONED = re.compile(r"\b(torch|hvd|device)\b")
_MOST_PER_CORE = 4  # with more ranks, each imports only what its cells ask for


class _Placeholder(ModuleType):
    """Horovod's API for torch, for code that gets at ``hvd`` without a mention of it: imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_TORCH), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (_TORCH,)


_CPU = str(b"cpu", "ascii")  # an object of its own: a cell's "cpu" is another one
_PLACEHOLDERS = {"hvd": _Placeholder(_TORCH), "device": _CPU}
_DYNAMO = "torch._dynamo"  # torch imports it with the first optimizer, which takes a second or two
_ahead = Ahead({"torch": 0.5, _DYNAMO: 2.0})


def has_torch() -> bool:
    """Tell whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def import_first() -> None:
    """Import what the names need before the rank is ready; the rest comes beside it."""
    if not has_torch():
        importlib.import_module(_NUMPY)
    elif devices.torch_decides():
        importlib.import_module(_TORCH)


def import_everything() -> None:
    """Import what cells are likely to want: for a process that has time."""
    if has_torch():
        for name in (_TORCH, _DYNAMO):
            with contextlib.suppress(Exception):  # whoever needs it hears why it fails
                importlib.import_module(name)


def ready(rank: int, size: int) -> dict[str, Any]:
    """Return the names."""
    names = {"rank": rank, "size": size, "local_rank": _session.local_rank()}
    if not has_torch():
        return names | {"hvd": importlib.import_module(_NUMPY), "device": "cpu"}
    at_once = parcel.loaded("torch") is not None or devices.torch_decides()
    return names | (_real() if at_once else _PLACEHOLDERS)


def import_ahead() -> None:
    """Begin to import what cells are likely to want; where many ranks share a core, cells have more use for it."""
    if has_torch() and _ranks_here() <= _MOST_PER_CORE * len(os.sched_getaffinity(0)):
        _ahead.begin()


@contextmanager
def during_cell(names: dict[str, Any], code: str) -> Iterator[None]:
    """Have the cell find torch's API and device, and no thread that imports beside it."""
    with _ahead.during_cell():
        if _MENTIONED.search(code) or parcel.loaded("torch") is not None:
            settle(names)
        yield


def settle(names: dict[str, Any]) -> None:
    """Put torch's API and device where their placeholders are."""
    waiting = [name for name, placeholder in _PLACEHOLDERS.items() if names.get(name) is placeholder]
    if waiting:
        with contextlib.suppress(Exception):  # the cell hears it from the placeholder, or from its own import
            real = _real()
            names.update({name: real[name] for name in waiting})


def _real() -> dict[str, Any]:
    return {"hvd": importlib.import_module(_TORCH), "device": devices.torch_device(_session.local_rank())}


def _ranks_here() -> int:
    return _session.local_size() if _session.is_initialized() else 1
