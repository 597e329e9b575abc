"""``hvd_kernel.spark.run``: runs a function on ranks that Spark starts, with Horovod's signature and results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from hvd_kernel.errors import ConfigError, RankDied
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_processes, panel
from hvd_kernel.spark import stage
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
    """Call ``fn(*args, **kwargs)`` on ranks that Spark starts; return its values in rank order.

    Each rank is a task of a barrier stage, so either all of them start or none. The function runs in a separate process
    next to the executor's Python worker, which exits with that worker, with the driver, and at Ctrl-C. In a notebook a
    panel shows the ranks while they train.

    Parameters
    ----------
    fn, args, kwargs
        Function and its arguments. The function calls ``hvd.init()``, as a script does.
    num_proc
        Number of ranks; None: ``spark.default.parallelism``.
    start_timeout
        Maximum number of seconds in which Spark starts the ranks; None: HOROVOD_SPARK_START_TIMEOUT, or 600.
    use_mpi, use_gloo, extra_mpi_args
        No effect: Spark starts the ranks, and MPI is not needed.
    env
        Environment variables of the ranks in addition to those of the executor. The driver's are not passed on.
    stdout, stderr
        Streams of this process for the output of the ranks; None: sys.stdout and sys.stderr.
    verbose
        No effect.
    nics
        Network interfaces of the driver and of rank 0 that the other ranks can reach.
    prefix_output_with_timestamp
        Prefix each line of a rank with the time.
    executable
        Python interpreter of the ranks; None: that of the executor's Python workers.

    Raises
    ------
    RankFailed
        The function raised; the message has the rank and its traceback, ``__cause__`` is its exception.
    RankDied
        A rank, or its executor, died before the function returned.
    ClusterError
        Spark could not start the ranks; the message has the reason.
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
    context = active()
    np = _size(context) if num_proc is None else num_proc
    if np < 1:
        raise ConfigError(f"num_proc={np}: a job has 1 rank or more, e.g. num_proc=4.")
    engine = stage_of(context, np, nics, barrier=True)
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
        with panel(np, f"{plural(np, 'rank')} on Spark") as show:
            return in_processes(call, replace(job, on_sample=show), stdout=stdout, stderr=stderr)
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
    """Call ``fn(*args, **kwargs)`` on ranks that may join and leave; return the values of the ranks that finish.

    The function uses ``hvd.elastic.run``. Each rank is an independent Spark task. A rank that fails is restarted in its
    task; if an executor is lost, Spark restarts its tasks on another one. The other ranks continue meanwhile. In a
    notebook a panel shows the ranks while they train, including those that join or leave.

    Parameters
    ----------
    fn, args, kwargs, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp
        See ``run``.
    num_proc
        Number of ranks that must have started before the training starts; None: ``spark.default.parallelism``.
    min_num_proc, min_np
        Minimum number of ranks; with fewer, the ranks wait. None: num_proc.
    max_num_proc, max_np
        Maximum number of ranks, and number of Spark tasks; None: num_proc.
    start_timeout
        Maximum number of seconds until num_proc tasks run; None: HOROVOD_SPARK_START_TIMEOUT, or 600.
    elastic_timeout
        Maximum wait for enough ranks, in seconds, after ranks were lost; None: HOROVOD_ELASTIC_TIMEOUT, or 600.
    reset_limit
        Maximum number of resets.

    Raises
    ------
    RankFailed
        The function raised; ``__cause__`` is its exception.
    RankDied
        A rank died after the limit of failures was reached.
    ClusterError
        There were not enough ranks; the message has the reason.
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
    context = active()
    np = _size(context) if num_proc is None else num_proc
    minimum, maximum = _size_of("min", min_num_proc, min_np) or np, _size_of("max", max_num_proc, max_np) or np
    options = ElasticOptions(np, minimum, maximum, by_engine=True, timeout_s=elastic_timeout, reset_limit=reset_limit)
    job = Job(
        command=[""],
        np=np,
        env=dict(env or {}),
        network_interface=nics if isinstance(nics, str) else next(iter(nics or ()), ""),
        start_timeout_s=start_seconds(start_timeout),
        timestamp=prefix_output_with_timestamp,
        engine=stage_of(context, maximum, nics, barrier=False),
    )
    call = pack_call(fn, args, kwargs or {}, ())
    with panel(np, "elastic ranks on Spark") as show:
        return in_processes(call, replace(job, on_sample=show), stdout=stdout, stderr=stderr, elastic=options)


def stage_of(context: Any, np: int, nics: str | Sequence[str] | None = None, *, barrier: bool) -> Stage:
    """Return a stage of np ranks in a SparkContext, or in a session of Spark Connect."""
    cls = Stage if _is_context(context) else stage.ConnectStage
    return cls(context, np, nics, barrier=barrier)


def default_size() -> int:
    """Return the default number of ranks.

    Raises
    ------
    UsageError
        There is no active SparkContext.
    """
    return _size(active())


def _size(context: Any) -> int:
    """Return the default number of ranks."""
    return int(context.defaultParallelism) if _is_context(context) else stage.size(context)


def _is_context(context: Any) -> bool:
    """Return whether this is a SparkContext, not a session of Spark Connect."""
    return hasattr(type(context), "defaultParallelism")


def _size_of(which: str, new: int | None, old: int | None) -> int | None:
    """Return the value of an argument with two names."""
    if new is not None and old is not None and new != old:
        raise ConfigError(f"{which}_num_proc={new} and {which}_np={old} are the same thing: keep {which}_num_proc.")
    return old if new is None else new


def start_seconds(start_timeout: float | None) -> float:
    """Return the maximum number of seconds in which Spark starts the ranks.

    Raises
    ------
    ConfigError
        The value is not a positive number.
    """
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "") if start_timeout is None else str(start_timeout)
    try:
        seconds = float(text or _START_S)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ConfigError(f"start_timeout={text}: write the seconds that Spark may take, e.g. 600.")
    return seconds
