"""``horovod.runner.util.threads``: functions in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Iterable[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call ``fn`` with each list of arguments; return the results by the list's number, or None without waiting."""
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
    """Start a thread; ``silent``: what it raises is not told."""
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
    """Start a thread that calls ``func`` when ``event`` is set, unless ``stop`` is set before."""

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args)

    return in_thread(wait, (), f"on_event {getattr(func, '__name__', func)}", daemon, silent)
