"""The names that are ready in every cell: ``rank``, ``size``, ``local_rank``, ``hvd`` and ``device``.

``hvd`` is Horovod's API for torch; where torch is not installed, that for TensorFlow, else for JAX, else for MXNet;
where none is, that for NumPy's arrays. A framework takes longer to import than all else that a rank needs. Where it
would find no GPU, a rank is ready without it: a thread imports it beside (import_prefetch.py), and the first cell that
mentions it waits for that.

Terms.
  placeholder  what ``hvd`` and ``device`` are until then; no cell that mentions them sees it
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.frameworks import registry
from hvd_kernel.frameworks.frontends import FRONTENDS, NUMPY, Frontend
from hvd_kernel.protocol import serialization
from hvd_kernel.worker import devices
from hvd_kernel.worker.frontend.after_import import AfterImport
from hvd_kernel.worker.frontend.import_prefetch import ImportPrefetch

_LOG = logging.getLogger("hvd_kernel")
NAMES = ("rank", "size", "local_rank", "hvd", "device")

_MOST_PER_CORE = 4  # with more ranks, each imports only what its cells ask for


@cache
def _frontend() -> Frontend:
    return next((each for each in FRONTENDS if _is_installed(each.package)), NUMPY)


@cache
def _mentioned() -> re.Pattern[str]:
    return re.compile(rf"\b({_frontend().package}|hvd|device)\b")


def _is_installed(package: str) -> bool:
    """Tell whether Python would import it; a bare folder of that name, beside a notebook, is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


class _Placeholder(ModuleType):
    """Horovod's API, for code that gets at ``hvd`` without a mention of it: imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


@cache
def _placeholders() -> dict[str, Any]:
    cpu = str(b"cpu", "ascii")  # an object of its own: a cell's "cpu" is another one
    return {"hvd": _Placeholder(_frontend().api), "device": cpu}


@cache
def _prefetch() -> ImportPrefetch:
    return ImportPrefetch(_frontend().prefetched, _frontend().companions)


def answer(*_asked: Any) -> tuple[dict[str, Any], list[Any]]:
    """Answer which module ``hvd`` is, and of which framework's package."""
    return {"api": _frontend().api, "package": _frontend().package}, []


def import_first() -> None:
    """Import what the names need before the rank is ready; the rest comes beside it."""
    if _at_once():
        importlib.import_module(_frontend().api)


def import_everything() -> None:
    """Import what cells are likely to want: for a process that has time."""
    for name in (_frontend().api, *_frontend().prefetched):
        with contextlib.suppress(Exception):  # whoever needs it hears why it fails
            importlib.import_module(name)


def ready(rank: int, size: int) -> dict[str, Any]:
    """Return the names."""
    names = {"rank": rank, "size": size, "local_rank": session.local_rank()}
    return names | (_real() if _at_once() or serialization.loaded(_frontend().package) is not None else _placeholders())


def begin_prefetch() -> None:
    """Begin to import what cells are likely to want; where many ranks share a core, cells have more use for it."""
    if _frontend().prefetched and _ranks_here() <= _MOST_PER_CORE * len(os.sched_getaffinity(0)):
        _prefetch().begin()
    for each in _attached():  # in front of that: it finds modules for itself
        each.begin()


@cache
def _attached() -> list[AfterImport]:
    return [AfterImport(theirs, partial(_attach, ours)) for theirs, ours in _frontend().attached.items()]


def _attach(ours: str, theirs: ModuleType) -> None:
    with contextlib.suppress(ImportError):  # a framework that is too old for our API
        importlib.import_module(ours).attach(theirs)


@contextmanager
def during_cell(names: dict[str, Any], code: str) -> Iterator[None]:
    """Have the cell find the framework's API and device, and no thread that imports beside it."""
    with _prefetch().during_cell():
        if _mentioned().search(code) or serialization.loaded(_frontend().package) is not None:
            settle(names)
        _settle_adapters()
        yield
        _settle_adapters()  # of what the cell has imported


def _settle_adapters() -> None:
    """Have the adapters of frameworks that are there. Without one a cell runs all the same, and is answered."""
    try:
        registry.settle()
    except Exception:  # noqa: BLE001 - of whatever stands for the framework: without an answer the notebook would wait
        _LOG.exception("no adapter of a framework that is imported")


def settle(names: dict[str, Any]) -> None:
    """Put the framework's API and device where their placeholders are."""
    waiting = [name for name, placeholder in _placeholders().items() if names.get(name) is placeholder]
    if waiting:
        with contextlib.suppress(Exception):  # the cell hears it from the placeholder, or from its own import
            real = _real()
            names.update({name: real[name] for name in waiting})


def _at_once() -> bool:
    return not _frontend().prefetched or devices.framework_decides()


def _real() -> dict[str, Any]:
    api, package = _frontend().api, _frontend().package
    return {"hvd": importlib.import_module(api), "device": devices.device(package, session.local_rank())}


def _ranks_here() -> int:
    return session.local_size() if session.is_initialized() else 1
