"""Backends of the estimators: who runs the training function, and on how many ranks. Horovod's interface.

Two come with it: ranks as tasks of a Spark job, and the ranks of ``hvd_kernel.run``, which in a notebook are its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_kernel.launch.run import api
from hvd_kernel.spark import runner

_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The driver's own: an executor has other devices."""


class Backend:
    """Runs a function on ranks. A backend of one's own has these two methods."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank; return what each has returned, in rank order."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """Return the number of ranks."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Ranks as tasks of a Spark job (``hvd_kernel.spark.run``).

    Parameters
    ----------
    num_proc
        How many; None: ``spark.default.parallelism``.
    env
        Variables for the ranks; CUDA_VISIBLE_DEVICES is left out, for it tells of the driver.
    **options
        More of ``hvd_kernel.spark.run``: start_timeout, stdout, stderr, nics, executable, prefix_output_with_timestamp.

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
        """Call the function on the ranks; errors as of ``hvd_kernel.spark.run``."""
        given = self._env | dict(env or {})
        given.pop(_DEVICES, None)
        return runner.run(fn, args, kwargs, num_proc=self._num_proc, env=given, **self._options)

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return self._num_proc

    def description(self) -> dict[str, Any]:
        """Return the arguments that make it again, as they are stored beside an estimator."""
        return {"num_proc": self._num_proc, "env": self._env, **self._options}


class RunBackend(Backend):
    """Ranks of ``hvd_kernel.run``: in a notebook those of ``%%hvdrun``, with their panel, else fresh processes.

    They have to see the store: a folder of this machine will do where they run here.

    Parameters
    ----------
    num_proc
        How many.
    **options
        More of ``hvd_kernel.run``: hosts, hostfile, reuse, start_timeout ...

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
        """Call the function on the ranks; errors as of ``hvd_kernel.run``."""
        return api.run(_Within(fn, env or {}), args, kwargs, num_proc=self._num_proc, **self._options)

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return self._num_proc

    def description(self) -> dict[str, Any]:
        """Return the arguments that make it again."""
        return {"num_proc": self._num_proc, **self._options}


class _Within:
    """A function that sets variables first: ranks that stay have others' besides."""

    def __init__(self, function: Callable[..., Any], env: Mapping[str, str]) -> None:
        self._function, self._env = function, dict(env)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.update(self._env)
        return self._function(*args, **kwargs)


def default_num_proc() -> int:
    """Return the number of ranks where nobody says one: ``spark.default.parallelism``.

    Raises
    ------
    UsageError
        There is no active SparkContext.
    """
    return runner.default_size()
