"""``hvd_kernel.spark.run``: a function on ranks that Spark starts, with Horovod's signature and its results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from hvd_kernel.errors import ConfigError, RankDied
from hvd_kernel.launch.elastic.job.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.in_notebook import panel
from hvd_kernel.launch.run.in_processes import in_engine
from hvd_kernel.spark import connect
from hvd_kernel.spark.stage import Stage, active

_START_S = 600.0


def run(  # noqa: PLR0917 - Horovod's signature
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ranks that Spark starts and return what it returned, in rank order.

    Each rank is one task of a barrier stage: all of them start together or none does. The function runs in a process of
    its own beside the executor's Python worker, which ends with that worker, with the driver, and with Ctrl-C. In a
    notebook a panel shows the ranks while they train.

    Parameters
    ----------
    fn, args, kwargs
        What is called on every rank; it says ``hvd.init()`` itself, as a script does.
    num_proc
        How many ranks; None: ``spark.default.parallelism``.
    start_timeout
        Seconds that Spark may take to start all of them; None: HOROVOD_SPARK_START_TIMEOUT, else 600.
    use_mpi, use_gloo, extra_mpi_args
        Accepted; Spark starts the ranks, and nothing here needs MPI.
    env
        Variables that the ranks get besides those of the executor. The driver's own do not go along.
    stdout, stderr
        Streams of this process that get what the ranks write; None: its own.
    verbose
        Accepted.
    nics
        Network interfaces of the driver and of rank 0 that the others reach.
    prefix_output_with_timestamp
        Write the time before each line of a rank's.
    executable
        Python interpreter of the ranks; None: that of the executor's Python workers.

    Raises
    ------
    RankFailed
        The function raised; the message names the rank and holds its traceback, ``__cause__`` is its exception.
    RankDied
        A rank ended before its function returned, or its executor did.
    ClusterError
        Spark could not start the ranks, and why.
    UsageError
        There is no active SparkContext.

    Examples
    --------
    In a PySpark session::

        hvd_kernel.spark.run(train, args=(0.1,), num_proc=4)
    """
    del use_gloo, verbose
    if not callable(fn):
        raise TypeError(f"run() calls a function on the ranks, but got {fn!r}.")
    if use_mpi or extra_mpi_args:
        warnings.warn(
            "use_mpi and extra_mpi_args have no effect: Spark starts the ranks, and our own ring connects them.",
            UserWarning,
            stacklevel=2,
        )
    found = active()
    np = _size(found) if num_proc is None else num_proc
    if np < 1:
        raise ConfigError(f"num_proc={np}: a job has 1 rank or more, e.g. num_proc=4.")
    engine = stage_of(found, np, nics, barrier=True)
    job = Job(
        command=[executable or ""],
        np=np,
        env=dict(env or {}),
        network_interface=engine.interface,
        start_timeout_s=start_seconds(start_timeout),
        timestamp=prefix_output_with_timestamp,
        engine=engine,
    )
    call = pack_call(fn, args, kwargs or {}, ())
    try:
        with panel(np, f"{np} rank{'s' * (np != 1)} on Spark") as show:
            return in_engine(call, replace(job, on_sample=show), stdout=stdout, stderr=stderr)
    except RankDied as died:
        if engine.error is not None and died.__cause__ is None:
            raise died from engine.error
        raise


def run_elastic(  # noqa: PLR0917 - Horovod's signature
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    verbose: int = 1,
    nics: str | Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ranks that may come and go; return what those of the end returned, by rank.

    The function is one for ``hvd.elastic.run``. Each rank is a Spark task of its own. A rank that fails is started
    again in its task; a task whose executor is lost is started by Spark on another one. The others go on meanwhile.
    In a notebook a panel shows the ranks while they train, those that come and go too.

    Parameters
    ----------
    fn, args, kwargs, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp
        As of ``run``.
    num_proc
        Ranks that must be there before the first begins; None: ``spark.default.parallelism``.
    min_num_proc, min_np
        With fewer than these the ranks wait; None: num_proc.
    max_num_proc, max_np
        Tasks that Spark is asked for: ranks that there may be; None: num_proc.
    start_timeout
        Seconds until num_proc tasks are up; None: HOROVOD_SPARK_START_TIMEOUT, else 600.
    elastic_timeout
        Longest wait for enough ranks, in seconds, after some were lost; None: HOROVOD_ELASTIC_TIMEOUT, else 600.
    reset_limit
        How often the ranks may meet again.

    Raises
    ------
    RankFailed
        The function raised; ``__cause__`` is its exception.
    RankDied
        A rank ended, and there were too many of these.
    ClusterError
        There were not enough ranks, and why.
    ConfigError
        The sizes contradict each other.
    UsageError
        There is no active SparkContext.

    Examples
    --------
    In a PySpark session::

        hvd_kernel.spark.run_elastic(train, num_proc=4, min_num_proc=2)
    """
    del verbose
    if not callable(fn):
        raise TypeError(f"run_elastic() calls a function on the ranks, but got {fn!r}.")
    found = active()
    np = _size(found) if num_proc is None else num_proc
    least, most = _one("min", min_num_proc, min_np) or np, _one("max", max_num_proc, max_np) or np
    options = ElasticOptions(np, least, most, by_engine=True, timeout_s=elastic_timeout, reset_limit=reset_limit)
    job = Job(
        command=[""],
        np=np,
        env=dict(env or {}),
        network_interface=nics if isinstance(nics, str) else next(iter(nics or ()), ""),
        start_timeout_s=start_seconds(start_timeout),
        timestamp=prefix_output_with_timestamp,
        engine=stage_of(found, most, nics, barrier=False),
    )
    call = pack_call(fn, args, kwargs or {}, ())
    with panel(np, "elastic ranks on Spark") as show:
        return in_engine(call, replace(job, on_sample=show), stdout=stdout, stderr=stderr, elastic=options)


def stage_of(found: Any, np: int, nics: str | Sequence[str] | None = None, *, barrier: bool) -> Stage:
    """Return the stage of so many ranks in a SparkContext, or in a session of Spark Connect."""
    kind = Stage if _is_context(found) else connect.ConnectStage
    return kind(found, np, nics, barrier=barrier)


def default_size() -> int:
    """Return the number of ranks where nobody says one.

    Raises
    ------
    UsageError
        There is no active SparkContext.
    """
    return _size(active())


def _size(found: Any) -> int:
    """Return the default number of ranks."""
    return int(found.defaultParallelism) if _is_context(found) else connect.size(found)


def _is_context(found: Any) -> bool:
    """Tell a SparkContext from a session of Spark Connect, which has no such thing."""
    return hasattr(type(found), "defaultParallelism")


def _one(which: str, new: int | None, old: int | None) -> int | None:
    """Return what one of two names says."""
    if new is not None and old is not None and new != old:
        raise ConfigError(f"{which}_num_proc={new} and {which}_np={old} are the same thing: keep {which}_num_proc.")
    return old if new is None else new


def start_seconds(asked: float | None) -> float:
    """Return how long Spark may take to start the ranks.

    Raises
    ------
    ConfigError
        It is no number of seconds.
    """
    said = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "") if asked is None else str(asked)
    try:
        seconds = float(said or _START_S)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ConfigError(f"start_timeout={said}: write the seconds that Spark may take, e.g. 600.")
    return seconds
