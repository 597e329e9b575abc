"""Registration of backend "hvd" when ``torch.distributed`` is imported on a rank; imports no other code for torch.

``init_process_group()`` then uses the backend for the CPU, and a store at a port that the ranks agree on. Creating the
group, or such a store, imports ``hvd_kernel.torch.distributed``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from hvd_kernel.frameworks.after_import import AfterImport
from hvd_kernel.settings import torchrun

BACKEND = "hvd"
_DEVICE = "cpu"
_OURS = "hvd_kernel.torch.distributed"
_SESSION = "hvd_kernel.core.session"


@cache
def after_import() -> AfterImport:
    """Return the finder that attaches to ``torch.distributed`` once it is imported."""
    return AfterImport("torch.distributed", attach)


@cache
def attach(distributed: ModuleType) -> None:
    """Register the backend in ``torch.distributed``, once per process, and make it the default.

    Ranks of torchrun and children of ``multiprocessing`` keep torch's defaults, as does a rank with HVD_TORCH=off.
    """
    is_rank = multiprocessing.parent_process() is None and not torchrun.is_launched(os.environ)
    if not is_rank or not torchrun.is_enabled(os.environ) or not distributed.is_available():
        return
    backends = distributed.Backend
    if BACKEND not in backends.backend_list:
        backends.register_backend(BACKEND, _create, extended_api=True, devices=[_DEVICE])
    backends.default_device_backend_map[_DEVICE] = BACKEND
    _replace_env_handler(distributed)


def _create(options: Any, backend_options: Any = None) -> Any:
    return importlib.import_module(f"{_OURS}.backend").create_group(options, backend_options)


def _replace_env_handler(distributed: ModuleType) -> None:
    """Make ``env://`` use a store at a new port for each default group; torch has no public function to replace it.

    With one port for all, a rank that creates the next group could connect to the store of the previous one.
    """
    handlers = getattr(sys.modules.get(f"{distributed.__name__}.rendezvous"), "_rendezvous_handlers", {})
    of_torch = handlers.get("env")
    if of_torch is None:
        return

    def rendezvous(url: str, *args: Any, **options: Any) -> Iterator[Any]:
        ours = _store(url, *args, **options)
        if ours is not None:
            yield ours
        else:
            yield from of_torch(url, *args, **options)

    handlers["env"] = rendezvous


def _store(url: str, *args: Any, **options: Any) -> Any:
    """Return the store of the next default group with rank and size; None if torch is to create it.

    torch creates it before ``hvd.init()``, and if the program has chosen another address.
    """
    session = sys.modules.get(_SESSION)
    if session is None or not session.is_initialized() or not torchrun.is_ours(os.environ):
        return None
    return importlib.import_module(f"{_OURS}.rendezvous").agreed_store(url, *args, **options)
