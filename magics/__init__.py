"""The magics: ``%load_ext hvd_kernel`` in any IPython, loaded already in the hvd_kernel kernel."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel import compat
from hvd_kernel.magics import complete
from hvd_kernel.magics.control import ControlMagics
from hvd_kernel.magics.desk import Desk
from hvd_kernel.magics.holder import Holder
from hvd_kernel.magics.hvdrun import RunMagics
from hvd_kernel.magics.transform import Transformer

__all__ = ["holder_of", "load_ipython_extension"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register magics, transformer and completion, let ``import horovod`` find us; loading twice changes nothing."""
    if holder_of(shell) is not None:
        return
    desk = Desk(shell, Holder())
    transformer = Transformer(lambda: _request(shell))
    shell.register_magics(RunMagics(desk))
    shell.register_magics(ControlMagics(desk, transformer))
    shell.input_transformers_cleanup.append(transformer)
    complete.install(shell)
    compat.install_as_told()


def holder_of(shell: InteractiveShell) -> Holder | None:
    """Return what holds the shell's cluster, or None where the magics are not loaded."""
    magics: RunMagics | None = shell.magics_manager.registry.get(RunMagics.__name__)
    return magics.holder if magics is not None else None


def _request(shell: InteractiveShell) -> dict[str, Any]:
    """Return the request that the kernel is answering; {} outside a kernel."""
    kernel = getattr(shell, "kernel", None)
    return dict(kernel.get_parent()) if kernel is not None else {}
