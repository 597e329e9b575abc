"""``hvd_kernel.spark.run``: a function on ranks that Spark starts, with Horovod's signature and its results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from hvd_kernel.errors import ConfigError, RankDied
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.in_processes import in_engine
from hvd_kernel.spark.stage import BarrierStage, context

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
    its own beside the executor's Python worker, which ends with that worker, with the driver, and with Ctrl-C.

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
    found = context()
    np = found.defaultParallelism if num_proc is None else num_proc
    if np < 1:
        raise ConfigError(f"num_proc={np}: a job has 1 rank or more, e.g. num_proc=4.")
    engine = BarrierStage(found, np, nics)
    job = Job(
        command=["python"],
        np=np,
        env=dict(env or {}),
        network_interface=engine.interface,
        start_timeout_s=start_seconds(start_timeout),
        timestamp=prefix_output_with_timestamp,
        engine=engine,
    )
    call = pack_call(fn, args, kwargs or {}, ())
    try:
        return in_engine(call, job, executable, stdout=stdout, stderr=stderr)
    except RankDied as died:
        if engine.error is not None and died.__cause__ is None:
            raise died from engine.error
        raise


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
