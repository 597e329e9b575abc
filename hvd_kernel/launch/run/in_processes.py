"""``run`` in fresh processes: the call goes out and the answers come back in files of a private folder."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from hvd_kernel.errors import ClusterError, RankDied, RankFailed
from hvd_kernel.launch.elastic.job.launch import launch_elastic
from hvd_kernel.launch.elastic.job.options import ElasticOptions
from hvd_kernel.launch.job_run import Job, Outcome, current_folder, launch
from hvd_kernel.launch.outcome import told
from hvd_kernel.launch.run.call import Answer
from hvd_kernel.processes.lifetime import claim
from hvd_kernel.processes.private_dir import CALL, answer_file, write_private

_TASK = ["-P", "-m", "hvd_kernel.launch.run.task"]
_TELLING = ["-P", "-m", "hvd_kernel.worker.job_telemetry", _TASK[-1]]


def in_processes(call: bytes, job: Job, *, far: bool, elastic: ElasticOptions | None = None) -> list[Any]:
    """Carry the call out on the job's ranks; return the values in rank order.

    Parameters
    ----------
    call
        What ``pack_call`` made.
    job
        The ranks; its command is the interpreter that they run.
    far
        Whether ranks may be on other hosts: the folder is then made here, in the directory that the hosts share.
    elastic
        How the number of ranks may change; the values are those of the first ``min_np`` ranks of the end.

    Raises
    ------
    RankFailed
        The function raised on a rank, which is named; its exception is the cause.
    RankDied
        A rank ended before its function returned.
    """
    prefix, place = (".hvd-run-", Path(current_folder())) if far else ("hvd-run-", None)
    with TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as name:  # 0700
        folder = Path(name)
        claim(folder)
        write_private(folder / CALL, call)
        job = replace(job, command=[*job.command, *_TASK, str(folder)], quiet=True)
        if elastic is None:
            outcome = launch(job, stdout=sys.stdout, stderr=sys.stderr)
            return values_of(_answers(folder, range(job.np)), job.np, outcome)
        outcome = launch_elastic(job, elastic, stdout=sys.stdout, stderr=sys.stderr)
        numbers = {*outcome.workers, *([] if outcome.failed_worker is None else [outcome.failed_worker])}
        return elastic_values(_answers(folder, numbers), outcome)[: elastic.min_np]


def in_engine(
    call: bytes,
    job: Job,
    *,
    stdout: IO[Any] | None,
    stderr: IO[Any] | None,
    elastic: ElasticOptions | None = None,
) -> list[Any]:
    """Carry the call out on ranks that a cluster's engine starts (``job.engine``); return the values in rank order.

    As ``in_processes``, but for call and answers, which go over the agents' channels. The job's command is the
    interpreter; an empty word: that of the engine's processes.
    """
    task = _TASK if job.on_sample is None else _TELLING
    job = replace(job, command=[*job.command, *task], call=call, quiet=True)
    out, err = stdout or sys.stdout, stderr or sys.stderr
    if elastic is None:
        outcome = launch(job, stdout=out, stderr=err)
        return values_of(_unpacked(outcome), job.np, outcome)
    outcome = launch_elastic(job, elastic, stdout=out, stderr=err)
    return elastic_values(_unpacked(outcome), outcome)


def _unpacked(outcome: Outcome) -> dict[int, Answer]:
    """Return the answers that have come over keyed channels."""
    return {number: pickle.loads(answer) for number, answer in outcome.answers.items()}  # noqa: S301 - our own ranks


def elastic_values(answers: Mapping[int, Answer], outcome: Outcome) -> list[Any]:
    """Return the values of the last generation's ranks, or raise what has ended the job; ``answers`` by process."""
    size = len(outcome.workers)
    if outcome.status == 0:
        found = {rank: answers[number] for rank, number in enumerate(outcome.workers) if number in answers}
        return values_of(found, size, outcome)
    if outcome.failed_worker is None:
        raise ClusterError(outcome.why)
    number = outcome.failed_worker
    rank = outcome.workers.index(number) if number in outcome.workers else outcome.failed or 0
    if (answer := answers.get(number)) is not None and answer.kind:
        raise failure(rank, size, answer) from answer.exception()
    raise RankDied(_died(rank, size, outcome), rank)


def _answers(folder: Path, numbers: Iterable[int]) -> dict[int, Answer]:
    """Return the answers, by the numbers of ranks, or of an elastic job's processes."""
    found = {number: _read(answer_file(folder, number)) for number in numbers}
    return {number: answer for number, answer in found.items() if answer is not None}


def values_of(answers: Mapping[int, Answer], np: int, outcome: Outcome) -> list[Any]:
    """Return the ranks' values, or raise what the run has to fail with (see ``in_processes``)."""
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
    """Return the rank whose exception came first and was not another's fault."""
    failed = [rank for rank, answer in answers.items() if answer.kind]
    return min(failed, key=lambda rank: (answers[rank].secondary, answers[rank].time, rank), default=None)


def failure(rank: int, np: int, answer: Answer) -> RankFailed:
    """Return the error of the whole run."""
    said = f"{answer.kind}: {answer.message}" if answer.message else answer.kind
    return RankFailed(f"rank {rank} of {np} raised {said}\n\n{answer.trace.rstrip()}", rank)


def _died(rank: int, np: int, outcome: Outcome) -> str:
    code = outcome.codes[rank] if rank < len(outcome.codes) else 1
    if outcome.why and rank == outcome.failed:
        what = f"rank {rank} of {np} was {outcome.why} before its function returned."
    elif code >= 0:
        what = f"rank {rank} of {np} ended with {told(code)} before its function returned."
    else:
        what = f"rank {rank} of {np} died before its function returned: {told(code)}."
    said = "".join(f"\n  {line}" for line in outcome.last_lines) if rank == outcome.failed else ""
    return f"{what} Its last output:{said}" if said else what


def _read(file: Path) -> Answer | None:
    try:
        answer: Answer = pickle.loads(file.read_bytes())  # noqa: S301 - a file of our own in our private folder
    except FileNotFoundError:
        return None
    return answer
