"""Utilities of Horovod's launchers.

``horovod.runner.common.util.{codec, env, host_hash, secret, timeout, tiny_shell_exec}`` and
``horovod.runner.util.{cache, threads}``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import importlib
import os
import pickle
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"  # noqa: S105 - a variable's name


def make_secret_key() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Return the digest that authenticates a message."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Return whether the digest authenticates the message."""
    return hmac.compare_digest(compute_digest(key, message), digest)


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Return the object in base64, as text or as bytes."""
    encoded = base64.b64encode(importlib.import_module("cloudpickle").dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Return the object. Decode only text of a trusted sender: unpickling runs code."""
    return pickle.loads(base64.b64decode(encoded))  # noqa: S301 - see the docstring


class TimeoutException(Exception):
    """Raised when a deadline has passed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Timeout:
    """Deadline in ``timeout`` seconds; ``message`` has a placeholder {activity}."""

    def __init__(self, timeout: float, message: str) -> None:
        self._seconds = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if the deadline has passed."""
        if self.timed_out():
            message = self._message.format(activity=activity).rstrip(". ")
            raise TimeoutException(f"{message}. Timeout after {self._seconds} seconds.")


def host_hash(salt: str | None = None) -> str:
    """Return a name that is equal for processes that can share memory: the host's name and a digest of its identity."""
    machine = importlib.import_module("hvd_kernel.settings.network").machine()
    identity = machine if salt is None else f"{machine}-{salt}"
    return f"{os.uname().nodename.partition('.')[0]}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", HOROVOD_SECRET_KEY}
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v: str) -> bool:
    """Return whether the launcher exports the variable to ranks."""
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of ranks from the environment, or 0 and 1 if it has neither.

    Raises
    ------
    RuntimeError
        The environment has only one of the two.
    """
    for names in _PAIRS:
        values = [os.environ[name] for name in names if name in os.environ]
        if len(values) == 1:
            raise RuntimeError(f"Could not determine process rank and size: only one of {' and '.join(names)} is set.")
        if values:
            return int(values[0]), int(values[1])
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Return whether this process runs in a pod of Kubeflow's MPI operator."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC  # noqa: SIM112 - its name


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Run a shell command; return its output with stderr and its exit status, or None if it could not be run."""
    try:
        done = subprocess.run(  # noqa: S602 - Horovod's callers pass a shell command
            command,
            shell=True,
            env=None if env is None else dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout, done.returncode


class Cache:
    """Cache of results within this process; the folder of Horovod's cache is ignored."""

    def __init__(self, cache_folder: str, cache_staleness_threshold_in_minutes: float, parameters_hash: str) -> None:
        del cache_folder, parameters_hash  # Horovod's: for a cache that processes share
        self._seconds = 60 * cache_staleness_threshold_in_minutes
        self._results: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable) -> Any:
        """Return the result of a key, or None if it is missing or too old."""
        when, value = self._results.get(key, (float("-inf"), None))
        return value if time.monotonic() - when <= self._seconds else None

    def put(self, key: Hashable, val: Any) -> None:
        """Store a result."""
        self._results[key] = time.monotonic(), val


def use_cache() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a parameter ``fn_cache``, which caches results other than None."""

    def decorated(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, fn_cache: Cache | None = None, **kwargs: Any) -> Any:
            if fn_cache is None:
                return func(*args, **kwargs)
            key = func.__name__, repr(args), repr(sorted(kwargs.items()))
            result = fn_cache.get(key)
            if result is None and (result := func(*args, **kwargs)) is not None:
                fn_cache.put(key, result)
            return result

        return call

    return decorated


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Iterable[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call ``fn`` with each list of arguments, in threads; return the results by index, or None without waiting."""
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)))
    futures = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=False)
    return {number: future.result() for number, future in enumerate(futures)} if block_until_all_done else None


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> Thread:
    """Start a thread; ``silent`` suppresses its exceptions."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}: for a single argument use (arg,)")  # noqa: TRY004 - Horovod's

    def run() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(  # noqa: PLR0917 - Horovod's signature
    event: Event,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    stop: Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> Thread:
    """Start a thread that calls ``func`` when ``event`` is set, unless ``stop`` is set first."""

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args)

    return in_thread(wait, (), f"on_event {getattr(func, '__name__', func)}", daemon, silent)
