"""The magics: ``%load_ext hvd_kernel`` in any IPython, loaded already in the hvd_kernel kernel."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel import compat
from hvd_kernel.magics.cluster_manager import Holder
from hvd_kernel.magics.commands.background import JobMagics
from hvd_kernel.magics.commands.debug import DebugMagics
from hvd_kernel.magics.commands.hvd import ControlMagics
from hvd_kernel.magics.commands.hvdrun import RunMagics
from hvd_kernel.magics.commands.logs import LogMagics
from hvd_kernel.magics.context import Desk
from hvd_kernel.magics.shell import completion, hints
from hvd_kernel.magics.shell.rank_names import RankNames
from hvd_kernel.magics.shell.transform import Transformer

__all__ = ["holder_of", "load_ipython_extension", "names_of", "unload_ipython_extension"]

_MAGICS = (RunMagics, ControlMagics, DebugMagics, JobMagics, LogMagics)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register magics, transformer and completion, let ``import horovod`` find us; loading twice changes nothing."""
    if holder_of(shell) is not None:
        return
    desk = Desk(shell, Holder())
    desk.holder.cells.follow(shell)
    transformer = Transformer(lambda: _request(shell))
    shell.register_magics(RunMagics(desk))
    names = RankNames(desk, transformer)
    shell.register_magics(ControlMagics(desk, transformer, names))
    shell.register_magics(DebugMagics(desk))
    shell.register_magics(JobMagics(desk))
    shell.register_magics(LogMagics(desk))
    shell.input_transformers_cleanup.append(transformer)
    completion.install(shell, names, desk.holder.jobs)
    hints.install(shell, names)
    compat.install_as_told()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """End the ranks, but for kept ones, and take back what loading has registered; unloading twice changes nothing."""
    holder = holder_of(shell)
    if holder is None:
        return
    holder.close()
    manager = shell.magics_manager
    for kind in _MAGICS:
        instance = manager.registry.pop(kind.__name__)
        for table in manager.magics.values():
            for name in [name for name, magic in table.items() if getattr(magic, "__self__", None) is instance]:
                del table[name]
        if isinstance(instance, JobMagics):
            instance.close()
    ours = [each for each in shell.input_transformers_cleanup if isinstance(each, Transformer)]
    for transformer in ours:
        shell.input_transformers_cleanup.remove(transformer)
    completion.uninstall(shell)
    hints.uninstall(shell)
    compat.uninstall()


def holder_of(shell: InteractiveShell) -> Holder | None:
    """Return what holds the shell's cluster, or None where the magics are not loaded."""
    magics: RunMagics | None = shell.magics_manager.registry.get(RunMagics.__name__)
    return magics.holder if magics is not None else None


def names_of(shell: InteractiveShell) -> RankNames | None:
    """Return what asks the ranks about names, or None where the magics are not loaded."""
    magics: ControlMagics | None = shell.magics_manager.registry.get(ControlMagics.__name__)
    return magics.names if magics is not None else None


def _request(shell: InteractiveShell) -> dict[str, Any]:
    """Return the request that the kernel is answering; {} outside a kernel."""
    kernel = getattr(shell, "kernel", None)
    return dict(kernel.get_parent()) if kernel is not None else {}
