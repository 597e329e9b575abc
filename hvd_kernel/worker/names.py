"""Names that every cell has: ``rank``, ``size``, ``local_rank``, ``hvd`` and ``device``.

``hvd`` is Horovod's API for the first installed framework of torch, TensorFlow, JAX and MXNet; without any, the API for
NumPy arrays. A framework takes longer to import than everything else in a rank. If it would find no GPU, the rank is
ready without it: a thread imports it in the background (import_prefetch.py), and the first cell that mentions it waits.

Terms.
  placeholder  value of ``hvd`` and ``device`` until then; no cell that mentions them sees it
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
from hvd_kernel.frameworks.after_import import AfterImport
from hvd_kernel.frameworks.frontends import FRONTENDS, NUMPY, Frontend
from hvd_kernel.protocol import modules
from hvd_kernel.worker import devices
from hvd_kernel.worker.import_prefetch import ImportPrefetch

_LOG = logging.getLogger("hvd_kernel")
NAMES = ("rank", "size", "local_rank", "hvd", "device")

_MOST_PER_CORE = 4  # ranks; with more, a rank imports only what its cells use


@cache
def _frontend() -> Frontend:
    return next((frontend for frontend in FRONTENDS if _is_installed(frontend.package)), NUMPY)


@cache
def _mentioned() -> re.Pattern[str]:
    return re.compile(rf"\b({_frontend().package}|hvd|device)\b")


def _is_installed(package: str) -> bool:
    """Return whether a package is installed; a plain folder of that name beside a notebook does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


class _Placeholder(ModuleType):
    """Horovod's API for code that uses ``hvd`` without mentioning it: imported at its first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


@cache
def _placeholders() -> dict[str, Any]:
    cpu = str(b"cpu", "ascii")  # a distinct object, not the "cpu" of a cell
    return {"hvd": _Placeholder(_frontend().api), "device": cpu}


@cache
def _prefetch() -> ImportPrefetch:
    return ImportPrefetch(_frontend().prefetched, _frontend().companions)


def answer(*_request: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the module of ``hvd``, and the package of its framework."""
    return {"api": _frontend().api, "package": _frontend().package}, []


def import_first() -> None:
    """Import what the names need before the rank is ready; the rest is imported in the background."""
    if _at_once():
        importlib.import_module(_frontend().api)


def import_everything() -> None:
    """Import everything that cells are likely to use, in a process without a deadline."""
    for name in (_frontend().api, *_frontend().prefetched):
        with contextlib.suppress(Exception):  # the import that needs it raises again
            importlib.import_module(name)


def ready(rank: int, size: int) -> dict[str, Any]:
    """Return the names and their values."""
    names = {"rank": rank, "size": size, "local_rank": session.local_rank()}
    return names | (_real() if _at_once() or modules.loaded(_frontend().package) is not None else _placeholders())


def begin_prefetch() -> None:
    """Start the prefetch of modules that cells are likely to use, unless too many ranks share a core."""
    if _frontend().prefetched and _ranks_here() <= _MOST_PER_CORE * len(os.sched_getaffinity(0)):
        _prefetch().begin()
    for callback in _attached():  # after the prefetch, to be before it in sys.meta_path: it calls the other finders
        callback.begin()


@cache
def _attached() -> list[AfterImport]:
    return [AfterImport(module, partial(_attach, adapter)) for module, adapter in _frontend().attached.items()]


def _attach(adapter: str, module: ModuleType) -> None:
    with contextlib.suppress(ImportError):  # a framework that is too old for our API
        importlib.import_module(adapter).attach(module)


@contextmanager
def during_cell(names: dict[str, Any], code: str) -> Iterator[None]:
    """Provide the framework's API and device to a cell that may use them, and pause the prefetch."""
    with _prefetch().during_cell():
        if _mentioned().search(code) or modules.loaded(_frontend().package) is not None:
            replace_placeholders(names)
        _load_adapters()
        yield
        _load_adapters()  # of frameworks that the cell has imported


def _load_adapters() -> None:
    """Load the adapters of imported frameworks. A cell runs, and gets a reply, even if one fails."""
    try:
        registry.import_adapters()
    except Exception:  # noqa: BLE001 - any module may pose as the framework; without a reply the notebook would wait
        _LOG.exception("no adapter of a framework that is imported")


def replace_placeholders(names: dict[str, Any]) -> None:
    """Replace placeholders by the framework's API and device."""
    waiting = [name for name, placeholder in _placeholders().items() if names.get(name) is placeholder]
    if waiting:
        with contextlib.suppress(Exception):  # the placeholder, or the cell's own import, raises again
            real = _real()
            names.update({name: real[name] for name in waiting})


def _at_once() -> bool:
    return not _frontend().prefetched or devices.framework_decides()


def _real() -> dict[str, Any]:
    api, package = _frontend().api, _frontend().package
    return {"hvd": importlib.import_module(api), "device": devices.device(package, session.local_rank())}


def _ranks_here() -> int:
    return session.local_size() if session.is_initialized() else 1
