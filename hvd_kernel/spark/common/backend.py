"""Backends of the estimators, which run the training function on ranks. Horovod's interface.

There are two: ranks as tasks of a Spark job, and ranks of ``hvd_kernel.run``, which in a notebook are its ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_kernel.launch.run import api
from hvd_kernel.spark import runner

_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Not sent to the ranks: it describes the driver's devices, and executors have others."""


class Backend:
    """Runs a function on ranks. A custom backend implements these two methods."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank; return its values in rank order."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """Return the number of ranks."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Ranks as tasks of a Spark job (``hvd_kernel.spark.run``).

    Parameters
    ----------
    num_proc
        Number of ranks; None: ``spark.default.parallelism``.
    env
        Environment variables of the ranks, without CUDA_VISIBLE_DEVICES, which describes the driver's devices.
    **options
        Other arguments of ``hvd_kernel.spark.run``: start_timeout, stdout, stderr, nics, executable,
        prefix_output_with_timestamp.

    Examples
    --------
    In a PySpark session::

        estimator = TorchEstimator(backend=SparkBackend(4, start_timeout=60), ...)
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self._num_proc = default_num_proc() if num_proc is None else num_proc
        self._env = dict(env or {})
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call the function on the ranks; raises the errors of ``hvd_kernel.spark.run``."""
        variables = self._env | dict(env or {})
        variables.pop(_DEVICES, None)
        return runner.run(fn, args, kwargs, num_proc=self._num_proc, env=variables, **self._options)

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return self._num_proc

    def description(self) -> dict[str, Any]:
        """Return the arguments of the constructor, which are saved with an estimator."""
        return {"num_proc": self._num_proc, "env": self._env, **self._options}


class RunBackend(Backend):
    """Ranks of ``hvd_kernel.run``: in a notebook the ranks of ``%%hvdrun``, with a panel, otherwise new processes.

    The ranks must be able to access the store: for ranks on this machine a local folder is sufficient.

    Parameters
    ----------
    num_proc
        Number of ranks.
    **options
        Other arguments of ``hvd_kernel.run``: hosts, hostfile, reuse, start_timeout ...

    Examples
    --------
    In a notebook, with a panel while it trains::

        estimator = TorchEstimator(backend=RunBackend(2), ...)
    """

    def __init__(self, num_proc: int = 1, **options: Any) -> None:
        self._num_proc, self._options = num_proc, options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call the function on the ranks; raises the errors of ``hvd_kernel.run``."""
        return api.run(_WithEnvironment(fn, env or {}), args, kwargs, num_proc=self._num_proc, **self._options)

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return self._num_proc

    def description(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"num_proc": self._num_proc, **self._options}


class _WithEnvironment:
    """A function that first sets environment variables, for ranks that outlive a job."""

    def __init__(self, function: Callable[..., Any], env: Mapping[str, str]) -> None:
        self._function, self._env = function, dict(env)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.update(self._env)
        return self._function(*args, **kwargs)


def default_num_proc() -> int:
    """Return the default number of ranks, ``spark.default.parallelism``.

    Raises
    ------
    UsageError
        There is no active SparkContext.
    """
    return runner.default_size()
