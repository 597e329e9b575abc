"""``import horovod.torch as hvd`` without Horovod: its module names lead to our modules, where the real one is absent.

``install()`` does it for this process. Notebooks with our magics have it on, and ranks that we start: those of a
notebook call it, those of a launcher get ``rank_environment``. Nothing named horovod is installed, so elsewhere nothing
changes for anybody who has not asked for it: ``pth`` and ``shim`` bring it into every Python of an environment, by
``later``. ``from polyaxon import tracking`` works in the same places: see ``polyaxon``; and ``import mxnet`` beside a
NumPy that is newer: see ``mxnet``.

Terms.
  real    a package horovod that this Python would import without us; a bare folder of that name is none
  shadow  come before the real one
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

from hvd_kernel.compat.finder import NAME, HorovodFinder, ours, real_exists
from hvd_kernel.compat.mxnet import MxnetFinder
from hvd_kernel.compat.polyaxon import TrackingFinder, stand_ins
from hvd_kernel.errors import UsageError
from hvd_kernel.settings import lookup

__all__ = [
    "found",
    "has_real",
    "install",
    "install_as_told",
    "install_in_rank",
    "rank_environment",
    "uninstall",
]

_SITE = Path(__file__).with_name("site")  # holds a sitecustomize, which Python imports when it starts


def install(shadow: bool = False) -> None:
    """Let ``import horovod`` find us; the real one goes first unless ``shadow`` says otherwise. May be called again.

    Raises
    ------
    UsageError
        The real one is to be shadowed, but is imported already.
    """
    imported = sys.modules.get(NAME)
    if shadow and imported is not None and not ours(imported):
        raise UsageError("horovod is imported already: call install(shadow=True) before anything imports it.")
    _remove_finders()
    # Before the path's own, which would load our files a second time.
    sys.meta_path[:0] = [HorovodFinder(shadow), TrackingFinder(), MxnetFinder()]


def uninstall() -> None:
    """Undo ``install``: what was imported stays with those who have it, and the names are free again."""
    _remove_finders()
    if ours(sys.modules.get(NAME)):
        for name in [name for name in sys.modules if name == NAME or name.startswith(NAME + ".")]:
            del sys.modules[name]
    for name in stand_ins():
        del sys.modules[name]


def install_in_rank() -> None:
    """Do what HVD_COMPAT says for this rank, and for the Python processes that it starts."""
    os.environ.update(rank_environment(os.environ))
    install_as_told()


def install_as_told() -> None:
    """Do what HVD_COMPAT says for this process alone."""
    choice = _choice(os.environ)
    if choice != "0":
        install(shadow=choice == "shadow")


def found(fullname: str) -> ModuleSpec | None:
    """Return where a name of horovod's leads to in a process where nothing else has it: ``later`` asks.

    From here on the process has what ``install_as_told`` gives.
    """
    imported = sys.modules.get(NAME)
    bare = imported is not None and getattr(imported, "__file__", None) is None
    if _finder() is not None or (imported is not None and not bare):
        return None  # they have been asked
    install_as_told()
    finder = _finder()
    if finder is None:
        return None
    if bare:  # the import of horovod.torch begins with a folder of that name
        del sys.modules[NAME]
        importlib.import_module(NAME)
    return finder.find_spec(fullname)


def has_real() -> bool:
    """Tell whether this Python imports a horovod that is not ours, whatever was asked for before."""
    if _finder() is not None:
        return real_exists()
    install()  # beside it ``later`` does not answer
    try:
        return real_exists()
    finally:
        _remove_finders()


def rank_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a launcher adds to ``env``, so that ``import horovod`` works in a rank's Python."""
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
