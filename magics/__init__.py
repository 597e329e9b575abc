"""The magics: ``%load_ext hvd_kernel`` in any IPython, loaded already in the hvd_kernel kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel import compat
from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.commands import hvdjobs
from hvd_kernel.magics.commands.subcommands import resize as sizes
from hvd_kernel.magics.commands.subcommands.client import connected
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.shell import completion, hints
from hvd_kernel.magics.shell.rank_names import RankNames
from hvd_kernel.magics.shell.registration import register, unregister
from hvd_kernel.magics.shell.transform import Transformer
from hvd_kernel.magics.task_runs import NotebookTasks
from hvd_kernel.protocol import notebook
from hvd_kernel.settings import traits

__all__ = [
    "client",
    "context_of",
    "load_ipython_extension",
    "manager_of",
    "names_of",
    "resize",
    "unload_ipython_extension",
]


@dataclass(frozen=True)
class _Loaded:
    """What a shell has of ours."""

    context: Context
    names: RankNames
    announce: Callable[[object], None]
    environment: dict[str, str | None]  # what the configuration's variables were before


_loaded: dict[InteractiveShell, _Loaded] = {}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register magics, transformer and completion, let ``import horovod`` find us; loading twice changes nothing."""
    if shell in _loaded:
        return
    context = Context(shell, ClusterManager(), Transformer(lambda: _request(shell)))
    names = RankNames(context)
    before = traits.put(_configured(context))
    _loaded[shell] = loaded = _Loaded(context, names, partial(hvdjobs.announce, context), before)
    context.manager.cells.follow(shell)
    context.manager.history.keep_in(Path(shell.ipython_dir))
    register(context)
    shell.events.register("pre_run_cell", loaded.announce)
    shell.input_transformers_cleanup.append(context.transformer)
    completion.install(shell, names, context.manager.jobs)
    hints.install(shell, names)
    notebook.register(shell, NotebookTasks(context))
    compat.install_by_environment()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """End the ranks, but for detached ones, and take back what loading has registered; twice changes nothing."""
    loaded = _loaded.pop(shell, None)
    if loaded is None:
        return
    loaded.context.manager.close()
    notebook.unregister(shell)
    unregister(loaded.context)
    shell.events.unregister("pre_run_cell", loaded.announce)
    if loaded.context.transformer in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(loaded.context.transformer)
    completion.uninstall(shell)
    hints.uninstall(shell)
    compat.uninstall()
    traits.put_back(loaded.environment)


def context_of(shell: InteractiveShell) -> Context | None:
    """Return what the shell's magics share, or None where they are not loaded."""
    loaded = _loaded.get(shell)
    return loaded.context if loaded is not None else None


def manager_of(shell: InteractiveShell) -> ClusterManager | None:
    """Return the manager of the shell's cluster, or None where the magics are not loaded."""
    context = context_of(shell)
    return context.manager if context is not None else None


def names_of(shell: InteractiveShell) -> RankNames | None:
    """Return what asks the ranks about names, or None where the magics are not loaded."""
    loaded = _loaded.get(shell)
    return loaded.names if loaded is not None else None


def client() -> Any:
    """Return an ipyparallel.Client of the ranks of the IPython that runs here.

    Raises
    ------
    UsageError
        None runs here, or the magics are not loaded there.
    """
    return connected(_here("client()"))


def resize(n: int) -> str:
    """Have n ranks of the IPython that runs here, as ``%hvd resize`` has; return what is to be said of it.

    Raises
    ------
    UsageError
        None runs here, or the magics are not loaded there; else as ``%hvd resize``.
    """
    return sizes.resize(_here("resize(6)"), n)


def _here(call: str) -> Context:
    """Return the context of the IPython that runs in this process, also where another thread asks."""
    shell = InteractiveShell._instance  # noqa: SLF001 - get_ipython() knows it only in the shell's own threads
    context = context_of(shell) if shell is not None else None
    if context is None:
        raise UsageError(
            f"hvd_kernel.{call} is for a notebook whose ranks are running: %load_ext hvd_kernel, then %hvd start -np 4"
        )
    return context


def _configured(context: Context) -> dict[str, str]:
    """Return the variables that the configuration says; a wrong value is told where ranks are to start."""
    try:
        return traits.configured(context.shell)
    except ConfigError as error:
        context.manager.problem = str(error)
        return {}


def _request(shell: InteractiveShell) -> dict[str, Any]:
    """Return the request that the kernel is answering; {} outside a kernel."""
    kernel = getattr(shell, "kernel", None)
    return dict(kernel.get_parent()) if kernel is not None else {}
