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
from hvd_kernel.magics.commands.background import announce
from hvd_kernel.magics.commands.index import install_completion, register, uninstall_completion, unregister
from hvd_kernel.magics.commands.lifecycle import connect_client, resize_ranks
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.rank_names import RankNames, install_hints, uninstall_hints
from hvd_kernel.magics.task_runs import NotebookTasks
from hvd_kernel.magics.transform import Transformer
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
    """The objects of one shell in which the magics are loaded."""

    context: Context
    names: RankNames
    announce: Callable[[object], None]
    environment: dict[str, str | None]  # the variables of the configuration, as they were before loading


_loaded: dict[InteractiveShell, _Loaded] = {}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register magics, transformer, completion and ``import horovod``; a second call has no effect."""
    if shell in _loaded:
        return
    context = Context(shell, ClusterManager(), Transformer(lambda: _request(shell)))
    names = RankNames(context)
    before = traits.put(_configured(context))
    _loaded[shell] = loaded = _Loaded(context, names, partial(announce, context), before)
    context.manager.cells.follow(shell)
    context.manager.history.keep_in(Path(shell.ipython_dir))
    register(context)
    shell.events.register("pre_run_cell", loaded.announce)
    shell.input_transformers_cleanup.append(context.transformer)
    install_completion(shell, names, context.manager.jobs)
    install_hints(shell, names)
    notebook.register(shell, NotebookTasks(context))
    compat.install_by_environment()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Stop the ranks, except detached ones, and undo what loading registered; a second call has no effect."""
    loaded = _loaded.pop(shell, None)
    if loaded is None:
        return
    loaded.context.manager.close()
    notebook.unregister(shell)
    unregister(loaded.context)
    shell.events.unregister("pre_run_cell", loaded.announce)
    if loaded.context.transformer in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(loaded.context.transformer)
    uninstall_completion(shell)
    uninstall_hints(shell)
    compat.uninstall()
    traits.put_back(loaded.environment)


def context_of(shell: InteractiveShell) -> Context | None:
    """Return the context that the shell's magics share, or None if they are not loaded."""
    loaded = _loaded.get(shell)
    return loaded.context if loaded is not None else None


def manager_of(shell: InteractiveShell) -> ClusterManager | None:
    """Return the manager of the shell's cluster, or None if the magics are not loaded."""
    context = context_of(shell)
    return context.manager if context is not None else None


def names_of(shell: InteractiveShell) -> RankNames | None:
    """Return the lookup of names on the ranks, or None if the magics are not loaded."""
    loaded = _loaded.get(shell)
    return loaded.names if loaded is not None else None


def client() -> Any:
    """Return an ipyparallel.Client of the ranks of this process's IPython.

    Raises
    ------
    UsageError
        No IPython runs in this process, or the magics are not loaded in it.
    """
    return connect_client(_here("client()"))


def resize(n: int) -> str:
    """Resize the ranks of this process's IPython to n, as ``%hvd resize`` does; return the outcome as a sentence.

    Raises
    ------
    UsageError
        No IPython runs in this process, or the magics are not loaded in it; or as ``%hvd resize``.
    """
    return resize_ranks(_here("resize(6)"), n)


def _here(call: str) -> Context:
    """Return the context of this process's IPython; any thread may call it."""
    shell = InteractiveShell._instance  # noqa: SLF001 - get_ipython() knows it only in the shell's own threads
    context = context_of(shell) if shell is not None else None
    if context is None:
        raise UsageError(
            f"hvd_kernel.{call} is for a notebook whose ranks are running: %load_ext hvd_kernel, then %hvd start -np 4"
        )
    return context


def _configured(context: Context) -> dict[str, str]:
    """Return the variables set by the configuration; a wrong value is reported when ranks are to start."""
    try:
        return traits.configured(context.shell)
    except ConfigError as error:
        context.manager.problem = str(error)
        return {}


def _request(shell: InteractiveShell) -> dict[str, Any]:
    """Return the message that the kernel is handling; {} outside a kernel."""
    kernel = getattr(shell, "kernel", None)
    return dict(kernel.get_parent()) if kernel is not None else {}
