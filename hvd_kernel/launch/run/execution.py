"""Execution of a call: in new processes, which agents or a cluster engine start, or on the ranks of a notebook."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import IO, Any, NoReturn

from hvd_kernel.errors import ClusterError, RankDied, RankFailed
from hvd_kernel.launch.elastic.job import launch_elastic
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.launch.outcome import Outcome, exit_text
from hvd_kernel.launch.run.call import Answer, Task
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.protocol.notebook import NotebookCluster, Performed, cluster_of

_TASK = ["-P", "-m", "hvd_kernel.launch.run.task"]
_TASK_WITH_TELEMETRY = ["-P", "-m", "hvd_kernel.worker.job_telemetry", _TASK[-1]]


def in_processes(
    call: bytes,
    job: Job,
    *,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    elastic: ElasticOptions | None = None,
) -> list[Any]:
    """Execute the call on the job's ranks, which are new processes; return the values in rank order.

    Call and answers go over the channels of the agents.

    Parameters
    ----------
    call
        The result of ``pack_call``.
    job
        The ranks; its command is their interpreter. An empty word means that of the processes of its engine.
    stdout, stderr
        Streams for the output of the ranks; by default those of this process.
    elastic
        How the number of ranks may change; the values are those of the ranks at the end.

    Raises
    ------
    RankFailed
        The function raised on a rank, which is named; its exception is the cause.
    RankDied
        A rank exited before its function returned.
    """
    task = _TASK if job.on_sample is None else _TASK_WITH_TELEMETRY
    job = replace(job, command=[*job.command, *task], call=call, quiet=True)
    out, err = stdout or sys.stdout, stderr or sys.stderr
    if elastic is None:
        outcome = launch(job, stdout=out, stderr=err)
        return values_of(_unpacked(outcome), job.np, outcome)
    outcome = launch_elastic(job, elastic, stdout=out, stderr=err)
    return elastic_values(_unpacked(outcome), outcome)


def _unpacked(outcome: Outcome) -> dict[int, Answer]:
    """Return the answers that were received over authenticated channels."""
    return {number: pickle.loads(answer) for number, answer in outcome.answers.items()}  # noqa: S301 - our own ranks


def elastic_values(answers: Mapping[int, Answer], outcome: Outcome) -> list[Any]:
    """Return the values of the last generation's ranks, or raise the job's failure; ``answers`` are by process."""
    size = len(outcome.workers)
    if outcome.status == 0:
        by_rank = {rank: answers[number] for rank, number in enumerate(outcome.workers) if number in answers}
        return values_of(by_rank, size, outcome)
    if outcome.failed_worker is None:
        raise ClusterError(outcome.reason)
    number = outcome.failed_worker
    rank = outcome.workers.index(number) if number in outcome.workers else outcome.failed or 0
    if (answer := answers.get(number)) is not None and answer.kind:
        raise failure(rank, size, answer) from answer.exception()
    raise RankDied(_died(rank, size, outcome), rank)


def values_of(answers: Mapping[int, Answer], np: int, outcome: Outcome) -> list[Any]:
    """Return the ranks' values, or raise the error of the run (see ``in_processes``)."""
    culprit = first_failure(answers)
    silent = outcome.failed is not None and outcome.failed not in answers
    if culprit is not None and not (silent and answers[culprit].secondary):
        answer = answers[culprit]
        raise failure(culprit, np, answer) from answer.exception()
    missing = [rank for rank in range(np) if rank not in answers]
    if missing:
        rank = outcome.failed if silent and outcome.failed is not None else missing[0]
        raise RankDied(_died(rank, np, outcome), rank)
    return [answers[rank].result() for rank in range(np)]


def first_failure(answers: Mapping[int, Answer]) -> int | None:
    """Return the rank whose exception was raised first, not counting those caused by another rank; None: none was."""
    failed = [rank for rank, answer in answers.items() if answer.kind]
    return min(failed, key=lambda rank: (answers[rank].secondary, answers[rank].time, rank), default=None)


def failure(rank: int, np: int, answer: Answer) -> RankFailed:
    """Return the error of the whole run."""
    error = f"{answer.kind}: {answer.message}" if answer.message else answer.kind
    return RankFailed(f"rank {rank} of {np} raised {error}\n\n{answer.trace.rstrip()}", rank)


def _died(rank: int, np: int, outcome: Outcome) -> str:
    code = outcome.codes[rank] if rank < len(outcome.codes) else 1
    if outcome.reason and rank == outcome.failed:
        text = f"rank {rank} of {np} was {outcome.reason} before its function returned."
    elif code >= 0:
        text = f"rank {rank} of {np} ended with {exit_text(code)} before its function returned."
    else:
        text = f"rank {rank} of {np} died before its function returned: {exit_text(code)}."
    output = "".join(f"\n  {line}" for line in outcome.last_lines) if rank == outcome.failed else ""
    return f"{text} Its last output:{output}" if output else text


# On the ranks of a notebook


def in_notebook(
    shell: Any, call: bytes, spec: Callable[[ClusterSpec | None], ClusterSpec], np: int, *, reuse: bool
) -> list[Any] | None:
    """Execute the call on the ranks of a notebook; return the values in rank order.

    Parameters
    ----------
    spec
        Returns the required cluster from the running one.
    reuse
        Replace running ranks that do not match, instead of returning None.

    Raises
    ------
    RankFailed
        The function raised on a rank, which is named; its exception is the cause.
    """
    done = _cluster(shell).perform(Task(call), spec, instead=reuse)
    if done is None:
        return None
    if done.error is not None:
        _fail(done, done.error, np)
    return [_answer(task).result() for _, task in sorted(done.tasks.items())]


def panel(ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None] | None]:
    """Show a panel for ranks of a job that are not the notebook's; yield a function that receives their samples.

    It yields None if this process is not a notebook's kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or (getattr(shell, "kernel", None) is None and cluster_of(shell) is None):
        return nullcontext()
    return _cluster(shell).panel(ranks, title)


def _cluster(shell: Any) -> NotebookCluster:
    if cluster_of(shell) is None:
        shell.extension_manager.load_extension("hvd_kernel")  # its magics manage the ranks, as `%hvd stop`
    cluster = cluster_of(shell)
    assert cluster is not None
    return cluster


def _fail(done: Performed, error: Exception, np: int) -> NoReturn:
    """Raise the root cause of the ranks' failures, with the rank's exception as its cause if that was sent."""
    if done.died:
        raise RankDied(str(error), done.rank) from None
    answer = _answer(done.tasks[done.rank])
    if not answer.kind:
        raise error  # the rank was stopped before the function began, or after it returned
    raise failure(done.rank, np, answer) from answer.exception()


def _answer(task: Task) -> Answer:
    return task.answer or Answer()
