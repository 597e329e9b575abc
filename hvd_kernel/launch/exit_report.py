"""Exit report: a JSON file in which a job's launcher records how the job and each of its ranks ended.

For schedulers and scripts that decide what to do next: retry, exclude a host, notify a user. docs/hvdrun.md has the
schema.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.cancellation import JobCancelled, Signalled
from hvd_kernel.launch.outcome import Outcome, exit_text, shell_status
from hvd_kernel.launch.output_sinks import OutputLoss, write_stderr

VERSION = 1
"""Version of the schema: it changes when a field changes its meaning or is removed."""

_FAILED, _WRONG_USE = 1, 2

Kind = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class RankExit:
    """The exit of one process; ``code`` as in ``subprocess``, None if it is unknown."""

    rank: int | None
    host: str
    pid: int | None
    code: int | None
    time: str | None  # ISO 8601, UTC
    reason: str = ""  # what has killed it: a limit, the loss of its host
    is_consequence: bool = False  # its error only reports another rank's end

    def fields(self) -> dict[str, object]:
        """Return the fields of the report: ``status`` or ``signal``, the other one is null."""
        values = asdict(self)
        code = values.pop("code")
        is_signal = code is not None and code < 0
        values["status"] = None if is_signal else code
        values["signal"] = signal_name(-code) if is_signal else None
        return values


@dataclass
class JobExit:
    """State of a job while it runs, for its report. ``ranks`` returns the exits of its processes."""

    loss: OutputLoss = field(default_factory=OutputLoss)
    ranks: Callable[[], list[RankExit]] = list
    outcome: Outcome | None = None
    first_cause: RankExit | None = None


def missing_folder_text(path: str) -> str:
    """Return that the report cannot be written, and the remedy."""
    return f"--exit-report {path}: there is no folder {Path(path).parent}: create it, or name another file."


def unwritten_text(path: str, error: OSError) -> str:
    """Return that the report could not be written."""
    return f"hvdrun: warning: the exit report {path} cannot be written: {error.strerror}\n"


@contextmanager
def recorded(path: str | None) -> Iterator[JobExit]:
    """Yield the record of a job, and write it to a file at the end, also of an error; None: to no file.

    Raises
    ------
    ConfigError
        The file's folder does not exist.
    """
    if path is not None and not Path(path).parent.is_dir():
        raise ConfigError(missing_folder_text(path))
    job, begin = JobExit(), now()
    try:
        yield job
    except BaseException as error:
        if path is not None:
            _write(path, job, _verdict(error) | {"begin": begin})
        raise
    if path is not None:
        _write(path, job, _result(job) | {"begin": begin})


def now() -> str:
    """Return the time, in UTC, as in ``2026-11-30T16:20:00.123456+00:00``."""
    return datetime.now(UTC).isoformat()


def signal_name(number: int) -> str:
    """Return the name of a signal, as in ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


def _verdict(error: BaseException) -> dict[str, object]:
    """Return the outcome of a job that an exception has ended."""
    if isinstance(error, JobCancelled | Signalled):
        return _fields("cancelled", shell_status(-error.number), str(error))
    if isinstance(error, KeyboardInterrupt):
        return _fields("cancelled", shell_status(-signal.SIGINT), "interrupted")
    return _fields("failed", _WRONG_USE if isinstance(error, ConfigError) else _FAILED, str(error))


def _result(job: JobExit) -> dict[str, object]:
    """Return the outcome of a job that has ended without an exception."""
    outcome, cause = job.outcome or Outcome(()), job.first_cause
    if not outcome.status:
        return _fields("succeeded", 0, "")
    text = outcome.reason or ("" if cause is None or cause.code is None else exit_text(cause.code))
    return _fields("failed", outcome.status, text)


def _fields(kind: Kind, status: int, message: str) -> dict[str, object]:
    return {"outcome": kind, "status": status, "message": message}


def _write(path: str, job: JobExit, fields: Mapping[str, object]) -> None:
    cause = None if job.first_cause is None else job.first_cause.fields()
    if cause is not None and job.outcome is not None:
        cause["last_lines"] = list(job.outcome.last_lines)
    report = {
        "version": VERSION,
        **fields,
        "end": now(),
        "first_cause": cause,
        "ranks": [rank.fields() for rank in job.ranks()],
        "lost_output_bytes": job.loss.bytes,
    }
    try:
        Path(path).write_text(json.dumps(report, indent=1) + "\n")  # in place: a pod's file may be a mount
    except OSError as error:
        write_stderr(unwritten_text(path, error))
