"""``run`` in a notebook: on its ranks, or beside them with a panel. The magics register both for the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from hvd_kernel.errors import RankDied
from hvd_kernel.launch.run.arguments import Asked
from hvd_kernel.launch.run.call import Answer, Task
from hvd_kernel.launch.run.in_processes import failure
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.protocol.notebook import NotebookCluster, Performed, cluster_of


def in_notebook(shell: Any, call: bytes, asked: Asked) -> list[Any] | None:
    """Return the values in rank order; None: these ranks are others than those that are wanted.

    Raises
    ------
    RankFailed
        The function raised on a rank, which is named; its exception is the cause.
    """
    done = _cluster(shell).perform(Task(call), asked.spec, instead=asked.reuse is True)
    if done is None:
        return None
    if done.error is not None:
        _fail(done, done.error, asked.np)
    return [_answer(task).result() for _, task in sorted(done.tasks.items())]


def panel(ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None] | None]:
    """Show what ranks of a job do that are not the notebook's; gives None where this process is no notebook's.

    What it gives else takes the ranks' samples, as long as the ``with`` lasts.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or (getattr(shell, "kernel", None) is None and cluster_of(shell) is None):
        return nullcontext()
    return _cluster(shell).panel(ranks, title)


def _cluster(shell: Any) -> NotebookCluster:
    if cluster_of(shell) is None:
        shell.extension_manager.load_extension("hvd_kernel")  # `%hvd stop` ends the ranks that stay
    cluster = cluster_of(shell)
    assert cluster is not None
    return cluster


def _fail(done: Performed, error: Exception, np: int) -> NoReturn:
    """Raise the root cause of what the ranks raised: the exception itself, where its rank still has it."""
    if done.died:
        raise RankDied(str(error), done.rank) from None
    answer = _answer(done.tasks[done.rank])
    if not answer.kind:
        raise error  # it was ended before the function had begun, or after it had returned
    raise failure(done.rank, np, answer) from answer.exception()


def _answer(task: Task) -> Answer:
    return task.answer or Answer()
