"""Registration of backend "hvd" when ``torch.distributed`` is imported on a rank; imports no other code for torch.

``init_process_group()`` then uses the backend for the CPU, and a store at a port that the ranks agree on. Creating the
group, or such a store, imports ``hvd_kernel.torch.distributed``.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from hvd_kernel.frameworks import accelerate_state, torch_connections
from hvd_kernel.frameworks.after_import import AfterImport
from hvd_kernel.protocol import modules
from hvd_kernel.settings import torchrun

BACKEND = "hvd"
_DEVICE = "cpu"
_DISTRIBUTED = "torch.distributed"
_OFF = {"HVD_TORCH": "off", "HVD_GUARD": "off"}  # ranks that train separate models are intended
_OURS = "hvd_kernel.torch.distributed"
_SESSION = "hvd_kernel.core.session"


@cache
def after_import() -> AfterImport:
    """Return the finder that attaches to ``torch.distributed`` once it is imported."""
    return AfterImport(_DISTRIBUTED, attach)


def offer() -> None:
    """Attach to ``torch.distributed`` once it is imported, unless a finder of this rank waits for it already."""
    if not any(isinstance(finder, AfterImport) and finder.name == _DISTRIBUTED for finder in sys.meta_path):
        after_import().begin()


def is_offered() -> bool:
    """Return whether this process gets the backend and torchrun's variables.

    Ranks of torchrun and children of ``multiprocessing`` keep torch's defaults, as does a rank with HVD_TORCH=off.
    """
    is_rank = multiprocessing.parent_process() is None and not torchrun.is_launched(os.environ)
    return is_rank and torchrun.is_enabled(os.environ)


def attach(distributed: ModuleType) -> None:
    """Register the backend in ``torch.distributed``, and make it the default, if it is offered. Idempotent."""
    if not is_offered() or not distributed.is_available():
        return
    backends = distributed.Backend
    if BACKEND not in backends.backend_list:
        backends.register_backend(BACKEND, _create, extended_api=True, devices=[_DEVICE])
    backends.default_device_backend_map[_DEVICE] = BACKEND
    _replace_env_handler(distributed)
    _meet_before_new_groups(distributed)
    torch_connections.watch(distributed)


@contextmanager
def independent() -> Iterator[None]:
    """Hide the other ranks from torch and accelerate: no numbers of ranks, and torch's own default backend."""
    names = (*torchrun.NAMES, torchrun.ADDRESS, *torchrun.OF_MPI, *_OFF)
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(_OFF)
    default = _set_default("gloo")
    try:
        with accelerate_state.hidden():
            yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)
        if default:
            _set_default(default)
        elif (distributed := modules.loaded(_DISTRIBUTED)) is not None:
            attach(distributed)


def _set_default(backend: str) -> str:
    """Set the default backend for the CPU, and return the previous one; "" without torch.distributed."""
    backends = getattr(modules.loaded(_DISTRIBUTED), "Backend", None)
    if backends is None:
        return ""
    before: str = backends.default_device_backend_map[_DEVICE]
    backends.default_device_backend_map[_DEVICE] = backend
    return before


def _create(options: Any, backend_options: Any = None) -> Any:
    return importlib.import_module(f"{_OURS}.backend").create_group(options, backend_options)


def _replace_env_handler(distributed: ModuleType) -> None:
    """Make ``env://`` use a store at a new port for each default group; torch has no public function to replace it.

    With one port for all, a rank that creates the next group could connect to the store of the previous one.
    """
    handlers = getattr(sys.modules.get(f"{distributed.__name__}.rendezvous"), "_rendezvous_handlers", {})
    of_torch = handlers.get("env")
    if of_torch is None or of_torch.__module__ == __name__:
        return

    def rendezvous(url: str, *args: Any, **options: Any) -> Iterator[Any]:
        yield _store(url, *args, **options) or next(of_torch(url, *args, **options))

    handlers["env"] = rendezvous


def _meet_before_new_groups(distributed: ModuleType) -> None:
    """Make the ranks that create a group meet on the core, which releases them if one of them has failed.

    In the group's store they would wait for minutes, and torch would number their next groups differently.
    """
    c10d: Any = getattr(distributed, "distributed_c10d", None)
    create = getattr(c10d, "_new_group_with_tag", None)
    if create is None or create.__module__ == __name__:
        return
    signature = inspect.signature(create)

    def create_together(*args: Any, **options: Any) -> Any:
        arguments = signature.bind(*args, **options).arguments
        ranks = tuple(arguments.get("ranks") or ()) if arguments.get("use_local_synchronization") else ()
        if _are_those_of_core(distributed) and (not ranks or distributed.get_rank() in ranks):
            importlib.import_module(f"{_OURS}.rendezvous").meet(ranks)
        return create(*args, **options)

    c10d._new_group_with_tag = create_together  # noqa: SLF001 - torch has no public place for it


def _are_those_of_core(distributed: ModuleType) -> bool:
    """Return whether the ranks of the default group are those of the core."""
    session = sys.modules.get(_SESSION)
    if session is None or not session.is_initialized() or not is_offered() or distributed.get_backend() == "fake":
        return False
    return (session.rank(), session.size()) == (distributed.get_rank(), distributed.get_world_size())


def _store(url: str, *args: Any, **options: Any) -> Any:
    """Return the store of the next default group with rank and size; None if torch is to create it.

    torch creates it before ``hvd.init()``, and if the program has chosen another address.
    """
    session = sys.modules.get(_SESSION)
    if session is None or not session.is_initialized() or not torchrun.is_ours(os.environ):
        return None
    return importlib.import_module(f"{_OURS}.rendezvous").agreed_store(url, *args, **options)
