"""``import horovod.torch as hvd`` without Horovod: its module names lead to our modules if the real one is absent.

``install()`` enables this in the current process. It is enabled in notebooks with our magics and in ranks that we
start: ranks of a notebook call ``install_in_rank``, ranks of a launcher get ``rank_environment``. Other processes do
not change, unless ``pth`` or ``shim`` has enabled it in every Python of an environment, with ``later``. The same
processes can ``from polyaxon import tracking`` (see ``polyaxon``) and ``import mxnet`` with NumPy 1.24 or newer.

Terms.
  real    a package horovod that this Python would import without us; a namespace package of that name does not count
  shadow  take precedence over the real one
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from hvd_kernel.compat.finder import NAME, HorovodFinder, TrackingFinder, ours, real_exists, stand_ins
from hvd_kernel.errors import UsageError
from hvd_kernel.settings import lookup

__all__ = [
    "found",
    "has_real",
    "install",
    "install_by_environment",
    "install_in_rank",
    "rank_environment",
    "uninstall",
]

_SITE = Path(__file__).with_name("site")  # has a sitecustomize, which Python imports at its start


class MxnetFinder(MetaPathFinder):
    """Restores the attributes of NumPy that MXNet needs when MXNet is imported; finds no module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, so that the other finders find the module."""
        del path, target  # of Python's interface
        if fullname == "mxnet":
            importlib.import_module("hvd_kernel.frameworks.numpy_names").restore()
        return None


def install(shadow: bool = False) -> None:
    """Map ``import horovod`` to our modules, if the real one is absent or ``shadow`` is set. May be called again.

    Raises
    ------
    UsageError
        ``shadow`` is set, but the real one is imported already.
    """
    imported = sys.modules.get(NAME)
    if shadow and imported is not None and not ours(imported):
        raise UsageError("horovod is imported already: call install(shadow=True) before anything imports it.")
    _remove_finders()
    # Before the path finder, which would load our files a second time.
    sys.meta_path[:0] = [HorovodFinder(shadow), TrackingFinder(), MxnetFinder()]


def uninstall() -> None:
    """Undo ``install``; references to imported modules stay valid."""
    _remove_finders()
    if ours(sys.modules.get(NAME)):
        for name in [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]:
            del sys.modules[name]
    for name in stand_ins():
        del sys.modules[name]


def install_in_rank() -> None:
    """Install as HVD_COMPAT says, in this rank and in the Python processes that it starts."""
    os.environ.update(rank_environment(os.environ))
    install_by_environment()


def install_by_environment() -> None:
    """Install as HVD_COMPAT says, in this process only."""
    choice = _choice(os.environ)
    if choice != "0":
        install(shadow=choice == "shadow")


def found(fullname: str) -> ModuleSpec | None:
    """Install as HVD_COMPAT says, and return the spec of a name of horovod's that no other finder has.

    Called by ``later``, whose text lies in the .pth files of environments: keep the name of this function.
    """
    imported = sys.modules.get(NAME)
    bare = imported is not None and getattr(imported, "__file__", None) is None
    if _finder() is not None or (imported is not None and not bare):
        return None  # the other finders have answered already
    install_by_environment()
    finder = _finder()
    if finder is None:
        return None
    if bare:  # a namespace package, imported as the parent of horovod.torch
        del sys.modules[NAME]
        importlib.import_module(NAME)
    return finder.find_spec(fullname)


def has_real() -> bool:
    """Return whether this Python has the real Horovod, whether or not we are installed."""
    if _finder() is not None:
        return real_exists()
    install()  # disables ``later``
    try:
        return real_exists()
    finally:
        _remove_finders()


def rank_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a launcher adds to ``env`` so that ``import horovod`` works in its ranks."""
    choice = _choice(env)
    if choice == "0":
        return {}
    others = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != str(_SITE)]
    return {"HVD_COMPAT": choice, "PYTHONPATH": os.pathsep.join([str(_SITE), *others])}


def _choice(env: Mapping[str, str]) -> str:
    return lookup.value("HVD_COMPAT", env)


def _finder() -> HorovodFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, HorovodFinder)), None)


def _remove_finders() -> None:
    ours = (HorovodFinder, TrackingFinder, MxnetFinder)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ours)]
