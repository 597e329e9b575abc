"""JAX's presence, looked at before anything here imports it; and how it is to run programs on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

from packaging.version import Version

from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks import installed

_PIP = install_command("jax")


def prepare() -> bool:
    """Import JAX, or refuse.

    Programs on the CPU run one after the other from here on: JAX would run two at a time, in an order that differs
    between ranks.

    Returns
    -------
    bool
        It had computed already, and goes on as it was.

    Raises
    ------
    ModuleNotFoundError
        It is not installed.
    ImportError
        It is too old.
    """
    spec = importlib.util.find_spec("jax")
    if spec is None or spec.origin is None:  # a bare folder of that name is none
        raise ModuleNotFoundError(
            f"hvd_kernel.jax needs JAX, which is not installed in this Python: {_PIP}", name="jax"
        )
    jax = importlib.import_module("jax")
    floor = next(each.floor for each in installed.FRAMEWORKS if each.package == "jax")
    if Version(jax.__version__) < Version(floor):
        raise ImportError(f"hvd_kernel.jax needs JAX {floor} or newer, and {jax.__version__} is installed: {_PIP}")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    begun = _has_begun()
    if begun:
        warnings.warn(
            "JAX has computed before hvd_kernel.jax was imported, so it runs programs at a time, in an order that may "
            "differ between ranks: import hvd_kernel.jax first.",
            stacklevel=2,
        )
    return begun


def _has_begun() -> bool:
    """Tell whether JAX has opened its devices, after which it takes no such setting."""
    bridge = importlib.import_module("jax._src.xla_bridge")
    return bool(getattr(bridge, "backends_are_initialized", bool)())


BEGAN_BEFORE = prepare()
"""JAX had computed already, and runs several programs at a time."""
